package client

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/types"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// A VM is not ended whose record will not go: its record is asked for before, and the VM runs on.
func TestRemoveAsksBeforeItEnds(t *testing.T) {
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	ours := &nodev1.VMInfo{Vm: vm, Owner: &nodev1.Owner{Node: "b"}} // the fake is node b
	for name, c := range map[string]struct {
		record func(*daemon)
		o      RemoveOptions
		is     func(error) bool
		says   string
	}{
		"the controller does not answer": {func(d *daemon) { d.fails = errdefs.ErrUnavailable }, RemoveOptions{Force: true},
			errdefs.IsUnavailable, ""},
		"it has rivals": {func(d *daemon) { d.rivals = true }, RemoveOptions{Force: true}, errdefs.IsFailedPrecondition,
			"It is not known which node has web"},
		"it is busy": {func(d *daemon) { d.operation = &nodev1.Operation{Kind: nodev1.Kind_KIND_HIBERNATE, Source: "b"} },
			RemoveOptions{Force: true}, errdefs.IsFailedPrecondition, "web is busy"},
		"no record changes now": {func(d *daemon) { d.closed = errdefs.ErrUnavailable }, RemoveOptions{Force: true},
			errdefs.IsUnavailable, "was not ended"},
		"no node may": {func(d *daemon) {
			d.guarded = fmt.Errorf("order it on the controller: %w",
				errdefs.ErrPermissionDenied)
		}, RemoveOptions{Force: true}, errdefs.IsPermissionDenied, "on the controller"},
		"a node is lost that is not": {func(*daemon) {}, RemoveOptions{Force: true, LostNode: "c"},
			errdefs.IsFailedPrecondition, "--lost-node"},
	} {
		d, ctr, c2 := newNode(t)
		ctr.web(t)
		ctr.tasks.is(tasktypes.Status_RUNNING)
		d.vms = []*nodev1.VMInfo{ours}
		c.record(d)
		_, err := c2.Remove(t.Context(), vm, c.o)
		if !c.is(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if len(ctr.tasks.calls) != 0 {
			t.Errorf("%s: %v", name, ctr.tasks.calls)
		}
	}
}

// What fails after the end of a VM says that it has ended, and how to go on. A VM without a record is removed.
func TestRemoveSaysThatItHasEnded(t *testing.T) {
	for _, recorded := range []bool{true, false} {
		d, ctr, c := newNode(t)
		vm := ctr.web(t)
		ctr.tasks.is(tasktypes.Status_RUNNING)
		if recorded {
			d.vms = []*nodev1.VMInfo{{Vm: vm, Owner: &nodev1.Owner{Node: "b"}}}
		}
		d.forget = errdefs.ErrUnavailable
		_, err := c.Remove(t.Context(), vm, RemoveOptions{Force: true})
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "web has ended") ||
			!strings.Contains(err.Error(), "godwit rm --force web") {
			t.Errorf("recorded %v: %v", recorded, err)
		}
		if !slices.Equal(ctr.tasks.calls, []string{"kill", "delete"}) {
			t.Errorf("recorded %v: %v", recorded, ctr.tasks.calls)
		}
	}
}

// Where a record was refused to this node after the end of its VM, the way on is on the controller.
func TestRemoveThatThisNodeMayNot(t *testing.T) {
	d, ctr, c := newNode(t)
	vm := ctr.web(t)
	ctr.tasks.is(tasktypes.Status_RUNNING)
	d.forget = errdefs.ErrPermissionDenied
	_, err := c.Remove(t.Context(), vm, RemoveOptions{Force: true})
	if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "on the controller: godwit rm --force web") {
		t.Error(err)
	}
}

// A VM is not stopped that cannot be started again, and one that was says that it has ended.
func TestRestartAsksBeforeItStops(t *testing.T) {
	for name, c := range map[string]struct {
		record func(*daemon)
		is     func(error) bool
		ended  bool
	}{
		"no answer":         {func(d *daemon) { d.fails = errdefs.ErrUnavailable }, errdefs.IsUnavailable, false},
		"it has rivals":     {func(d *daemon) { d.rivals = true }, errdefs.IsFailedPrecondition, false},
		"no record changes": {func(d *daemon) { d.closed = errdefs.ErrUnavailable }, errdefs.IsUnavailable, false},
		"it is lost":        {func(d *daemon) { d.lost = "sha256:1" }, errdefs.IsFailedPrecondition, false},
		"its last state is due": {func(d *daemon) { d.deletion = &nodev1.Deletion{Tries: 1, Class: "unavailable"} },
			func(err error) bool {
				return errdefs.IsFailedPrecondition(err) && strings.Contains(err.Error(), "rm --cancel web")
			},
			false},
		"its removal has failed for good": {func(d *daemon) {
			d.deletion = &nodev1.Deletion{Tries: 1, Class: "failed precondition"}
		}, func(err error) bool { return err != nil }, true},
		"no node removes it": {func(d *daemon) { d.guarded = errdefs.ErrPermissionDenied },
			func(err error) bool { return err != nil && !errdefs.IsPermissionDenied(err) }, true},
		"its start fails": {func(*daemon) {}, func(err error) bool { return err != nil }, true},
	} {
		d, ctr, c2 := newNode(t)
		vm := ctr.web(t)
		ctr.tasks.is(tasktypes.Status_RUNNING)
		d.vms = []*nodev1.VMInfo{{Vm: vm, Owner: &nodev1.Owner{Node: "b"}}}
		c.record(d)
		err := c2.Restart(t.Context(), vm, time.Minute)
		if !c.is(err) || strings.Contains(err.Error(), "web has ended") != c.ended ||
			slices.Contains(ctr.tasks.calls, "kill") != c.ended {
			t.Errorf("%s: %v: %v", name, ctr.tasks.calls, err)
		}
	}
}

// A task whose status is not known has not ended: containerd says so of a shim that does not answer.
func TestStartOfUnknown(t *testing.T) {
	_, ctr, c := newNode(t)
	vm := ctr.web(t)
	ctr.tasks.is(tasktypes.Status_UNKNOWN)
	_, err := c.Start(t.Context(), vm, nil)
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "does not answer") || len(ctr.tasks.calls) != 0 {
		t.Errorf("%v: %v", ctr.tasks.calls, err)
	}
}

// Where it is not known whether a VM is that of a pod, nothing is done to it: CRI does not look at what others do.
func TestPodThatIsNotKnown(t *testing.T) {
	pod := &types.Sandbox{SandboxID: "s1", Sandboxer: record.ShimSandboxer, Runtime: &types.Sandbox_Runtime{
		Name: godwitRuntime}}
	for name, c := range map[string]struct {
		set func(*ctrd)
		is  func(error) bool
	}{
		"containerd does not answer": {func(c *ctrd) { c.fails = errdefs.ErrUnavailable }, errdefs.IsUnavailable},
		"its sandboxes are not known": {func(c *ctrd) { c.pods.fails = errdefs.ErrUnavailable },
			errdefs.IsUnavailable},
		"the shim of a sandbox does not answer": {func(c *ctrd) {
			c.pods.list, c.pods.silent = []*types.Sandbox{pod}, errdefs.ErrUnavailable
		}, errdefs.IsUnavailable},
		"it is one": {func(c *ctrd) { c.pods.list, c.pods.state = []*types.Sandbox{pod}, "SANDBOX_READY" },
			errdefs.IsFailedPrecondition},
		"it is one that has ended": {func(c *ctrd) { c.pods.list, c.pods.state = []*types.Sandbox{pod}, "SANDBOX_NOTREADY" },
			nil},
		"containerd has no sandboxes": {func(c *ctrd) { c.pods.fails = errdefs.ErrNotImplemented }, nil},
		"the sandbox has gone by then": {func(c *ctrd) {
			c.pods.list, c.pods.silent = []*types.Sandbox{pod}, errdefs.ErrNotFound
		}, nil},
	} {
		_, ctr, client := newNode(t)
		c.set(ctr)
		err := client.refusePod(t.Context(), &nodev1.VM{Namespace: "default", Id: "s1"}, podStop)
		if c.is == nil && err != nil || c.is != nil && !c.is(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
