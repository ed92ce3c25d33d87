//go:build integration

package life

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/integration/harness"
)

// testHang stops the shim of a VM that runs, and then calls what containerd calls for a shim
// that it has given up. Nothing of the VM is left after that call, and the shim is gone too. If
// the shim went on, it would write to what is another VM's by then. containerd hears of one end.
func testHang(t *testing.T, n *harness.Node, id string) {
	client := connect(t, n)
	exits := listen(t, client)
	task, err := load(t.Context(), client, id)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(n.Dir, "lib", "vms", "default", id)
	data, err := os.ReadFile(filepath.Join(dir, "node.json"))
	if err != nil {
		t.Fatal(err)
	}
	var journal struct {
		RAM, RunDir   string
		Shim, Process struct{ PID int }
	}
	if err := json.Unmarshal(data, &journal); err != nil {
		t.Fatal(err)
	}
	signal := func(name string, pid int) error {
		_, err := n.Run(t.Context(), "sh", "-c", "kill -"+name+" "+strconv.Itoa(pid))
		return err
	}
	if !lives(n, journal.Shim.PID) || !lives(n, journal.Process.PID) {
		t.Fatalf("%s does not run: %+v", id, journal)
	}
	if err := signal("STOP", journal.Shim.PID); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	outlived := make(chan bool)
	go func() { outlived <- outlives(ctx, n, journal.Shim.PID, dir) }()
	err = deleted(t.Context(), n, id, task.Pid())
	if err != nil || lives(n, journal.Shim.PID) || lives(n, journal.Process.PID) {
		t.Errorf("%v; the shim lives: %t, the VMM: %t", err, lives(n, journal.Shim.PID), lives(n, journal.Process.PID))
	}
	cancel()
	if <-outlived {
		t.Error("the VM was taken from a shim that lives")
	}
	for _, path := range []string{dir, journal.RunDir, journal.RAM} {
		if _, err := n.Run(t.Context(), "test", "-e", path); err == nil || path == "" {
			t.Errorf("%q is left", path)
		}
	}
	_ = signal("CONT", journal.Shim.PID) // without effect if it is gone: the node is as it was in the end
	if err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
		return over(ctx, client, id, exits()[id])
	}); err != nil {
		t.Error(err)
	}
	box, err := client.LoadContainer(t.Context(), id)
	if err == nil {
		err = box.Delete(t.Context(), containerd.WithSnapshotCleanup)
	}
	if err != nil {
		t.Error(err)
	}
}

// lives reports whether a process of the node, by the node's own pids, does or may do anything.
func lives(n *harness.Node, pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/proc/%d/stat", n.PID(), pid))
	return err == nil && !strings.Contains(string(data), ") Z ")
}

// The answer is whether a shim lives after its journal was written by another process.
func outlives(ctx context.Context, n *harness.Node, shim int, dir string) bool {
	for tick := time.NewTicker(time.Millisecond); ctx.Err() == nil; <-tick.C {
		data, err := os.ReadFile(filepath.Join(dir, "node.json"))
		if err != nil || !strings.Contains(string(data), fmt.Sprintf(`"shim":{"pid":%d,`, shim)) {
			return lives(n, shim)
		}
	}
	return false
}

// deleted runs the shim's delete as containerd does.
func deleted(ctx context.Context, n *harness.Node, id string, pid uint32) error {
	bundle := filepath.Join(n.Dir, "state", "io.containerd.runtime.v2.task", "default", id)
	out, err := n.Run(ctx, "containerd-shim-godwit-v1", "-namespace", "default", "-address", n.Socket, "-id", id,
		"-bundle", bundle, "delete")
	if err != nil {
		return err
	}
	var r taskapi.DeleteResponse
	if err := proto.Unmarshal([]byte(out), &r); err != nil {
		return err
	}
	if r.GetExitStatus() != 137 || r.GetPid() != pid {
		return fmt.Errorf("delete answers %v, want 137 and pid %d", &r, pid)
	}
	return nil
}

// over wants containerd to have no task, and to have told one end of it.
func over(ctx context.Context, client *containerd.Client, id string, exits []uint32) error {
	if _, err := load(ctx, client, id); !errdefs.IsNotFound(err) {
		return fmt.Errorf("task %s is there: %v", id, err)
	}
	if !slices.Equal(exits, []uint32{137}) {
		return fmt.Errorf("containerd told of the ends %v of %s", exits, id)
	}
	return nil
}
