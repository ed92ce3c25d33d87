//go:build integration

package ctr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// OCI hooks at their points, and the ends of a VM that its guest does not bring about:
// its host's memory, and the death of its shim.
func TestHooksAndHostEnds(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true})
	n := h.Node(0)
	n.CheckClean(t)
	t.Run("VMM out of memory", func(t *testing.T) { testStarved(t, h, n) })
	t.Run("dead shim", func(t *testing.T) { testDeadShim(t, n) })
}

// hooked makes a task whose hooks write their kind and the state that they get.
func hooked(t *testing.T, n *harness.Node, vm string) (task client.Task, told func() []string) {
	t.Helper()
	ctx := namespaces.WithNamespace(t.Context(), "default")
	out := filepath.Join(n.Dir, vm+"-hooks")
	c, err := client.New(n.Socket)
	must(t, "dial containerd", err)
	t.Cleanup(func() { c.Close() })
	image, err := c.GetImage(ctx, images.Busybox)
	must(t, "find image", err)
	container, err := c.NewContainer(ctx, vm, client.WithNewSnapshot(vm, image), client.WithRuntime(runtimeName, nil),
		client.WithNewSpec(
			oci.WithImageConfig(image), oci.WithProcessArgs("sleep", "100000"), withHooks(out)))
	must(t, "make container", err)
	task, err = container.NewTask(ctx, cio.NullIO)
	must(t, "make task", err)
	return task, func() []string { return toldBy(t, out, vm, task.Pid()) }
}

func withHooks(out string) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		hook := func(kind string) []specs.Hook {
			return []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "echo " + kind + " $(cat) >>" + out}}}
		}
		s.Hooks = &specs.Hooks{Prestart: hook("prestart"), CreateRuntime: hook("createRuntime"), Poststart: hook("poststart"),
			Poststop: hook("poststop")}
		return nil
	}
}

// toldBy reads what the hooks were told: kind and status, after a look at the rest.
func toldBy(t *testing.T, out, vm string, pid uint32) (all []string) {
	t.Helper()
	data, err := os.ReadFile(out)
	must(t, "read hooks", err)
	for line := range strings.Lines(string(data)) {
		kind, text, _ := strings.Cut(line, " ")
		var s specs.State
		must(t, "read state", json.Unmarshal([]byte(text), &s))
		want := int(pid)
		if s.Status == specs.StateStopped {
			want = 0
		}
		if s.ID != vm || s.Pid != want || filepath.Base(s.Bundle) != vm || s.Version == "" {
			t.Errorf("%s got %s, want id %s and pid %d", kind, text, vm, want)
		}
		all = append(all, fmt.Sprint(kind, " ", s.Status))
	}
	return all
}

// wantHooks waits for the last of the hooks, then compares.
func wantHooks(t *testing.T, told func() []string, want ...string) {
	t.Helper()
	err := harness.Poll(t.Context(), stepTimeout, func(context.Context) error {
		if !slices.Contains(told(), want[len(want)-1]) {
			return errors.New("not yet")
		}
		return nil
	})
	if diff := cmp.Diff(want, told()); err != nil || diff != "" {
		t.Errorf("hooks (-want +got): %s %v", diff, err)
	}
}

// A VMM that the host kills for its memory is not a container that met its own limit:
// the event, the log and the machine service name another reason.
func testStarved(t *testing.T, h *harness.Harness, n *harness.Node) {
	ctx := namespaces.WithNamespace(t.Context(), "default")
	events := watchEvents(t, n)
	task, told := hooked(t, n, "starved")
	wantHooks(t, told, "prestart creating", "createRuntime creating")
	exit, err := task.Wait(ctx)
	must(t, "wait", err)
	must(t, "start", task.Start(ctx))
	wantHooks(t, told, "prestart creating", "createRuntime creating", "poststart running")
	s := dialShim(t, n, "starved")
	starve(t, s)
	if e := <-exit; e.ExitCode() != 137 {
		t.Errorf("exit status %d, %v", e.ExitCode(), e.Error())
	}
	q, err := s.machine.Query(s.ctx, &machinev1.QueryRequest{})
	if err != nil || q.GetEnded() != "vmm-out-of-memory" {
		t.Errorf("the VMM ended for %q, %v", q.GetEnded(), err)
	}
	says(t, h, n, "vmm-out-of-memory")
	events.stdout.says(t, "/godwit/vmm-out-of-memory")
	if f := s.figures(t); f.oomKills != 0 {
		t.Errorf("the container is said to have met its limit: %+v", f)
	}
	_, err = task.Delete(ctx)
	must(t, "delete", err)
	wantHooks(t, told, "prestart creating", "createRuntime creating", "poststart running", "poststop stopped")
	checkEvents(t, events, "starved", "/tasks/create", "/tasks/start", "/tasks/exit", "/tasks/delete")
	n.Ctr(t, "container", "rm", "starved")
}

// The hooks of the end run also where the shim cannot: containerd's cleanup does it.
func testDeadShim(t *testing.T, n *harness.Node) {
	_, told := hooked(t, n, "dead")
	s := dialShim(t, n, "dead")
	r, err := s.Connect(s.ctx, &taskapi.ConnectRequest{})
	must(t, "connect", err)
	if _, err := n.Run(t.Context(), "kill", "-KILL", fmt.Sprint(r.GetShimPid())); err != nil {
		t.Fatal(err)
	}
	wantHooks(t, told, "prestart creating", "createRuntime creating", "poststop stopped")
	n.Ctr(t, "container", "rm", "dead")
}
