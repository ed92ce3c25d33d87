//go:build integration

package critest

import (
	"flag"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

var handler = flag.String("handler", "godwit",
	"the runtime handler that the newest containerd runs the selection with, after runc")

// selection is of critest. Its specs take seconds each, and touch each part of the ground: the registry, the network,
// logs, mounts, streams.
const selection = `support execSync \[|listing container stats|set hostname|DNS config|removing running container|` +
	`adding capability|container with log|attach|port mapping with (only|host)|RunPodSandbox, StopPodSandbox|` +
	`mount image and enforce|support recursive readonly|listing pod sandbox metrics|support NamespaceMode_POD`

// A few specs of critest: runc, the control, passes them on each release of containerd, and the handler does what it
// must on the newest.
func TestSelection(t *testing.T) {
	for _, release := range harness.Releases {
		t.Run(string(release), func(t *testing.T) {
			o := Order{Suite: "critest", Handler: Control, Release: release, Selection: Selection{Focus: selection},
				Logs: t.TempDir(), Log: t.Logf}
			switch release {
			case harness.Newest:
				o.Handler = *handler
			case harness.LongRun:
				o.Selection.Skip = "listing pod sandbox metrics" // it has no container_threads
			}
			r, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			r.Table(t.Output())
			if err := r.Err(); err != nil {
				t.Error(err)
			}
			if r.RuncPassed < 12 {
				t.Errorf("the control passes %d specs, want 12 at least", r.RuncPassed)
			}
		})
	}
}
