//go:build integration

package life

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
)

// starvation is longer than a VM is missed before its record is given up (a minute), by two rounds.
const starvation = 90 * time.Second

// TestStarved shows that a daemon without descriptors, which can look at nothing on its node, gives no
// VM up: it runs on, its record is as it was, and the daemon goes on when it has descriptors again.
func TestStarved(t *testing.T) {
	// so there are records
	h := harness.New(t, harness.Options{Godwitd: true, Images: true, Config: func(n *harness.Node) string {
		return fmt.Sprintf("[registry]\nlayout = %q\n", filepath.Join(n.Dir, "store"))
	}})
	n, id := h.Node(0), name(0)
	n.CheckClean(t)
	client := connect(t, n)
	task, err := create(t.Context(), client, id, int(code(0)), smallest)
	if err == nil {
		err = task.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	before, err := claim(t, n, id)
	if err != nil || before.node == "" || before.status != "running" {
		t.Fatalf("%+v, %v", before, err)
	}
	limit := limitFiles(t, n, nil)
	limitFiles(t, n, &unix.Rlimit{Cur: 3, Max: limit.Max})
	ctx, cancel := context.WithTimeout(t.Context(), starvation)
	defer cancel()
	if _, err := n.RunGodwit(ctx, "ps"); err == nil { // it takes no connection
		t.Error("the daemon has descriptors")
	}
	<-ctx.Done()
	limitFiles(t, n, limit)
	err = harness.Poll(t.Context(), time.Minute, func(ctx context.Context) error {
		status, err := task.Status(ctx)
		if err == nil && status.Status != containerd.Running {
			err = fmt.Errorf("%s is %s", id, status.Status)
		}
		after, cerr := claim(t, n, id)
		if cerr == nil && after != before {
			cerr = fmt.Errorf("its record was %+v and is %+v", before, after)
		}
		return errors.Join(err, cerr)
	})
	if err != nil {
		t.Error(err)
	}
	if got, err := execute(t.Context(), task, "starved", "sh", "-c", "exit 5"); got != 5 || err != nil {
		t.Errorf("exec in %s: %d, %v", id, got, err)
	}
	if err := remove(t.Context(), client, id, code(0)); err != nil {
		t.Error(err)
	}
}

// limitFiles bounds the descriptors of the node's daemon; it answers the bound before.
func limitFiles(t *testing.T, n *harness.Node, to *unix.Rlimit) *unix.Rlimit {
	t.Helper()
	old := new(unix.Rlimit)
	if err := unix.Prlimit(n.Godwitd.PID(), unix.RLIMIT_NOFILE, to, old); err != nil {
		t.Fatal(err)
	}
	return old
}

// claimed is what a record says of whose the VM is.
type claimed struct {
	status, node, generation string
}

func claim(t *testing.T, n *harness.Node, id string) (c claimed, err error) {
	out, err := n.RunGodwit(t.Context(), "ps", "-o", "json")
	if err != nil {
		return c, err
	}
	var all struct {
		VMs []struct {
			VM         struct{ ID string }
			Owner      struct{ Node string }
			Status     string
			Generation json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return c, fmt.Errorf("%w: %s", err, out)
	}
	for _, vm := range all.VMs {
		if vm.VM.ID == id {
			return claimed{vm.Status, vm.Owner.Node, string(vm.Generation)}, nil
		}
	}
	return c, fmt.Errorf("%s is not in %s", id, out)
}
