//go:build integration

package life

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/integration/harness"
)

// smallest RAM that this guest runs something in, rounded up; docs/reference/annotations.md has it.
const smallest = "96MiB"

// vms of the tests on one node.
const vms = 10

func name(i int) string { return fmt.Sprintf("vm%d", i) }
func code(i int) uint32 { return uint32(40 + i) }

// TestDaemons shows, on one node, that ten VMs go on while containerd is restarted. A VM whose
// shim hangs and VMs by many clients leave nothing. A tap without a VM goes.
func TestDaemons(t *testing.T) {
	h := harness.New(t, harness.Options{Godwitd: true, Images: true, Debug: true})
	n := h.Node(0)
	n.CheckClean(t)
	makeTaps(t, n)
	boot(t, n)
	t.Run("containerd killed", func(t *testing.T) { testRestart(t, n, n.Containerd.Kill, 0, 1) })
	t.Run("containerd stopped", func(t *testing.T) { testRestart(t, n, n.Containerd.Stop, 2, 3) })
	t.Run("shim hangs", func(t *testing.T) { testHang(t, n, name(4)) })
	t.Run("end", func(t *testing.T) { testEnd(t, n) })
	t.Run("orphaned tap", func(t *testing.T) { testTaps(t, n) })
	t.Run("many", func(t *testing.T) { testMany(t, n) })
}

// boot starts the VMs, two at a time: the machine has two processors.
func boot(t *testing.T, n *harness.Node) {
	t.Helper()
	client := connect(t, n)
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(2)
	for i := range vms {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, bound)
			defer cancel()
			task, err := create(ctx, client, name(i), int(code(i)), smallest)
			if err != nil {
				return err
			}
			return task.Start(ctx)
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// testRestart ends containerd, and two of the VMs while it is away. containerd must come back to
// the others running, and to both ends, each told once.
func testRestart(t *testing.T, n *harness.Node, end func() error, first, second int) {
	pids := map[string]uint32{}
	before := connect(t, n)
	for i := second + 1; i < vms; i++ {
		task, err := load(t.Context(), before, name(i))
		if err != nil {
			t.Fatal(err)
		}
		pids[name(i)] = task.Pid()
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{first, second} {
		if err := quit(t.Context(), n, i); err != nil {
			t.Fatalf("end %s while containerd is away: %v", name(i), err)
		}
	}
	if err := n.StartContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	client := connect(t, n)
	exits := listen(t, client)
	for i := second + 1; i < vms; i++ {
		task, err := load(t.Context(), client, name(i))
		if err != nil {
			t.Fatal(err)
		}
		status, err := task.Status(t.Context())
		if err != nil || status.Status != containerd.Running || task.Pid() != pids[name(i)] {
			t.Errorf("%s is %s with pid %d, %v; its pid was %d", name(i), status.Status, task.Pid(), err, pids[name(i)])
		}
		if got, err := execute(t.Context(), task, fmt.Sprintf("again%d", first), "sh", "-c", "exit 5"); got != 5 ||
			err != nil {
			t.Errorf("exec in %s: %d, %v", name(i), got, err)
		}
	}
	for _, i := range []int{first, second} {
		if err := remove(t.Context(), client, name(i), code(i)); err != nil {
			t.Error(err)
		}
	}
	for id, all := range exits() {
		if len(all) > 1 {
			t.Errorf("%s ended %d times: %v", id, len(all), all)
		}
	}
}

// quit ends a VM past containerd.
func quit(ctx context.Context, n *harness.Node, i int) error {
	return direct(ctx, n, name(i), func(ctx context.Context, shim taskapi.TTRPCTaskService) error {
		done := make(chan containerd.ExitStatus, 1)
		go func() {
			r, err := shim.Wait(ctx, &taskapi.WaitRequest{ID: name(i)})
			done <- *containerd.NewExitStatus(r.GetExitStatus(), r.GetExitedAt().AsTime(), err)
		}()
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		got, err := ask(ctx, done, func() error {
			_, err := shim.Kill(ctx, &taskapi.KillRequest{ID: name(i), Signal: 15})
			if err != nil && strings.Contains(err.Error(), "finished") {
				return nil
			}
			return err
		})
		if err == nil && got != code(i) {
			err = fmt.Errorf("status %d, want %d", got, code(i))
		}
		return err
	})
}

// listen counts the exits of inits from now on.
func listen(t *testing.T, client *containerd.Client) (exits func() map[string][]uint32) {
	t.Helper()
	ch, _ := client.Subscribe(t.Context(), `topic=="/tasks/exit"`)
	var mu sync.Mutex
	seen := map[string][]uint32{}
	go func() {
		for e := range ch {
			v, err := typeurl.UnmarshalAny(e.Event)
			if exit, ok := v.(*events.TaskExit); ok && err == nil && exit.GetID() == exit.GetContainerID() {
				mu.Lock()
				seen[exit.GetID()] = append(seen[exit.GetID()], exit.GetExitStatus())
				mu.Unlock()
			}
		}
	}()
	return func() map[string][]uint32 {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(seen)
	}
}

// testEnd ends the VMs that are left. One who has waited since before hears of it, once.
func testEnd(t *testing.T, n *harness.Node) {
	client := connect(t, n)
	exits := listen(t, client)
	for i := 5; i < vms; i++ {
		if err := remove(t.Context(), client, name(i), code(i)); err != nil {
			t.Error(err)
		}
	}
	err := harness.Poll(t.Context(), bound, func(context.Context) error {
		seen := exits()
		for i := 6; i < vms; i++ { // the first one may be over before anybody listens
			if !slices.Equal(seen[name(i)], []uint32{code(i)}) {
				return fmt.Errorf("exits of %s: %v", name(i), seen[name(i)])
			}
		}
		return nil
	})
	if err != nil {
		t.Error(errors.Join(err))
	}
}
