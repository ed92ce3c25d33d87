//go:build integration

package critest

import (
	"flag"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

var handler = flag.String("handler", Control, "the runtime handler that the selection runs with, after runc")

// selection is of critest. Its specs take seconds each, and touch each part of the ground: the registry, the network,
// logs, mounts, streams.
const selection = `support execSync \[|listing container stats|set hostname|DNS config|removing running container|` +
	`adding capability|container with log|attach|port mapping with (only|host)|RunPodSandbox, StopPodSandbox`

// A few specs of critest on each release of containerd: the control passes them, and the handler does what it must.
func TestSelection(t *testing.T) {
	for _, release := range harness.Releases {
		t.Run(string(release), func(t *testing.T) {
			r, err := Run(t.Context(), Order{Suite: "critest", Handler: *handler, Release: release,
				Selection: Selection{Focus: selection}, Logs: t.TempDir(), Log: t.Logf})
			if err != nil {
				t.Fatal(err)
			}
			r.Table(t.Output())
			if err := r.Err(); err != nil {
				t.Error(err)
			}
			if r.RuncPassed < 10 {
				t.Errorf("the control passes %d specs, want 10 at least", r.RuncPassed)
			}
		})
	}
}
