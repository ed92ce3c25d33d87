package goldens

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/migrate/tasks"
)

var errFake = errors.New("failed on purpose")

// node is containerd, shims, records and store of a node. The call of a name fails.
type node struct {
	nodev1.RecordsService
	fail    string
	calls   []string
	left    []*nodev1.VM // containers that a maker has left
	removed []string     // VMs whose record is gone
}

func (n *node) call(name string) error {
	n.calls = append(n.calls, name)
	if name == n.fail {
		return errFake
	}
	return nil
}

func (n *node) Repository() (string, error) { return "reg/vms/golden", n.call("repository") }
func (n *node) Find(context.Context, string, *machinev1.QueryResponse) (string, error) {
	return "sha256:1", n.call("find")
}

// shelf is the store; its Ready is another one than that of containerd.
type shelf struct{ *node }

func (s shelf) Ready(context.Context, string) error { return s.call("table") }
func (s shelf) Replacing(context.Context) func(context.Context, string) {
	return func(context.Context, string) { _ = s.call("replaced") }
}

func (n *node) Image(context.Context, *nodev1.VM) (string, string, error) {
	return "web:1", "sha256:image", n.call("image")
}
func (n *node) Boot(_ context.Context, vm *nodev1.VM, _ *nodev1.GoldenRequest) (*tasks.Booted, error) {
	n.left = append(n.left, vm)
	return &tasks.Booted{VM: vm, Digest: "sha256:image"}, n.call("boot")
}
func (n *node) Ready(context.Context, *tasks.Booted, string, func(context.Context) (bool, error)) error {
	return n.call("ready")
}
func (n *node) Unboot(_ context.Context, vm *nodev1.VM) error {
	n.left = slices.DeleteFunc(n.left, func(other *nodev1.VM) bool { return other.GetId() == vm.GetId() })
	return n.call("unboot")
}
func (n *node) Unfinished(context.Context) ([]*nodev1.VM, error) { return slices.Clone(n.left), nil }
func (n *node) Query(context.Context, *nodev1.VM) (*machinev1.QueryResponse, error) {
	return &machinev1.QueryResponse{Vmm: "qemu"}, n.call("query")
}
func (n *node) Capture(context.Context, *nodev1.VM, *machinev1.CaptureRequest) (*machinev1.CaptureResponse, error) {
	return &machinev1.CaptureResponse{Digest: "sha256:1", PushedBytes: 5}, n.call("capture")
}
func (n *node) Abort(context.Context, *nodev1.VM, *machinev1.AbortRequest) error {
	return n.call("abort")
}
func (n *node) Get(context.Context, *nodev1.GetRequest) (*nodev1.Record, error) {
	return &nodev1.Record{Uid: "u"}, n.call("get")
}
func (n *node) Remove(_ context.Context, req *nodev1.RemoveRequest) (*nodev1.RemoveResponse, error) {
	n.removed = append(n.removed, req.GetVm().GetId())
	return &nodev1.RemoveResponse{}, n.call("remove")
}

func newMaker(fail string) (*node, *Maker) {
	n := &node{fail: fail}
	return n, &Maker{Shelf: shelf{n}, Tasks: n, Machines: n, Records: n}
}

// Any call may fail while a golden snapshot is made: its VM and the record of that VM go. A
// snapshot is claimed only if there is one. Its table is never worth an error.
func TestMakeFailsAtEachCall(t *testing.T) {
	for _, fail := range []string{"", "repository", "boot", "ready", "query", "capture", "abort", "table", "unboot",
		"remove"} {
		n, m := newMaker(fail)
		resp, err := m.Make(t.Context(), &nodev1.TemplateMakeRequest{Image: &nodev1.GoldenRequest{Namespace: "default",
			Image: "web:1", TimeoutMs: 60_000}})
		if fine := fail == "" || fail == "table"; fine != (err == nil) {
			t.Errorf("%s fails: %v", fail, err)
		}
		if err == nil && (resp.GetTemplate().GetName() != "sha256:1" || resp.GetPushedBytes() != 5 ||
			resp.GetRepository() != "reg/vms/golden") {
			t.Errorf("%s fails: %v", fail, resp)
		}
		if len(n.left) > 0 || fail != "repository" && len(n.removed) != 1 {
			t.Errorf("%s fails: VMs %v are left, records %v are removed", fail, n.left, n.removed)
		}
		if slices.Contains(n.calls, "replaced") != slices.Contains([]string{"", "abort", "table", "unboot", "remove"}, fail) {
			t.Errorf("%s fails: calls are %v", fail, n.calls)
		}
	}
}

// What a daemon that was killed has left of makers goes; a VM that is being captured stays.
func TestSweep(t *testing.T) {
	n, m := newMaker("")
	mine, other := &nodev1.VM{Namespace: "default", Id: "template-1"}, &nodev1.VM{Namespace: "default", Id: "golden-2"}
	n.left = []*nodev1.VM{mine, other}
	m.own(mine, true)
	if err := m.Sweep(t.Context()); err != nil || len(n.left) != 1 || n.left[0] != mine ||
		!slices.Equal(n.removed, []string{"golden-2"}) {
		t.Errorf("left %v, removed %v, %v", n.left, n.removed, err)
	}
	m.own(mine, false)
	if err := m.Sweep(t.Context()); err != nil || len(n.left) != 0 {
		t.Errorf("after its end: left %v, %v", n.left, err)
	}
}

// A golden snapshot is used where it is found and read. What fails costs bytes, and no
// operation. A node that uses none, or has no store, asks no store.
func TestGoldenOfAVM(t *testing.T) {
	for _, fail := range []string{"", "image", "query", "find", "table", "repository"} {
		n, m := newMaker(fail)
		want := ""
		if fail == "" {
			want = "sha256:1"
		}
		if got := m.Golden(t.Context(), &nodev1.VM{Id: "vm"}); got != want {
			t.Errorf("%s fails: %q", fail, got)
		}
		if fail == "repository" && len(n.calls) != 1 {
			t.Errorf("without a store: %v", n.calls)
		}
	}
	n, m := newMaker("")
	if m.Off = true; m.Golden(t.Context(), &nodev1.VM{Id: "vm"}) != "" || n.calls != nil {
		t.Errorf("template.image.mode is off: %v", n.calls)
	}
}

// A node without a store says so before it boots anything.
func TestMakeNeedsAStore(t *testing.T) {
	n, m := newMaker("")
	m.Shelf = none{shelf{n}}
	_, err := m.Make(t.Context(), &nodev1.TemplateMakeRequest{Image: &nodev1.GoldenRequest{Image: "web:1"}})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "registry") || n.calls != nil {
		t.Errorf("%v after %v", err, n.calls)
	}
}

type none struct{ shelf }

func (none) Repository() (string, error) {
	return "", errors.Join(errors.New("no registry.repository"), errdefs.ErrFailedPrecondition)
}
