//go:build integration

package move

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// What a VM's annotations name, and what these write.
const (
	readyFile, askedFile = "/data/ready", "/data/asked"
	hookFile, heardFile  = "/data/hook", "/data/heard"
	askedBefore          = 3 // times, until the workload says that it is ready
)

// signs wants a checkpoint to be refused while there is nothing that says whether the workload is ready. It then
// makes what says so, and what hears of snapshots.
func signs(t *testing.T, n *harness.Node) {
	t.Helper()
	if _, err := n.RunGodwit(t.Context(), "checkpoint", vm); err == nil ||
		!strings.Contains(err.Error(), "godwit.dev/ready") {
		t.Errorf("checkpoint of a VM that cannot be asked whether it is ready: %v", err)
	}
	const ready = `#!/bin/sh
echo asked >>` + askedFile + `
test $(wc -l <` + askedFile + `) -ge 3`
	const hook = `#!/bin/sh
echo "$@" >>` + heardFile
	n.Ctr(t, "task", "exec", "--exec-id", "signs", vm, "/bin/sh", "-c",
		fmt.Sprintf(`echo '%s' >%s; echo '%s' >%s; chmod +x %s %s`, ready, readyFile, hook, hookFile, readyFile, hookFile))
}

func guestFile(t *testing.T, n *harness.Node, path string) string {
	t.Helper()
	return n.Ctr(t, "task", "exec", "--exec-id", "cat", vm, "/bin/cat", path)
}

// hears wants these lines, each of one command, and no others.
func hears(t *testing.T, n *harness.Node, want ...string) {
	t.Helper()
	lines := strings.Join(want, "\n")
	err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
		got, err := n.RunCtr(ctx, "task", "exec", "--exec-id", "heard", vm, "/bin/cat", heardFile)
		if got = strings.TrimSpace(got); err != nil || got != lines {
			return fmt.Errorf("the workload heard %q (%v), want %q", got, err, lines)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
