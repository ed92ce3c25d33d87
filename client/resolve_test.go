package client

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func info(id, node string) *nodev1.VMInfo {
	return &nodev1.VMInfo{Vm: &nodev1.VM{Namespace: "default", Id: id}, Owner: &nodev1.Owner{Node: node}}
}

// A VM is found by whole id, else by the name of its container, else by the beginning of its id. Several are named, and
// what is no VM is refused.
func TestResolve(t *testing.T) {
	d, c, client := newNode(t)
	d.vms = []*nodev1.VMInfo{info("web", "b"), info("7a31c0", "b"), info("7a99ff", "b"),
		{Vm: &nodev1.VM{Namespace: "default", Id: "7a31gone"}, Status: "removed"},
		{Vm: &nodev1.VM{Namespace: "other", Id: "7a31xx"}, Status: "running"}}
	c.add(t, "default", "0f1e2d", "db", godwitRuntime)
	c.add(t, "default", "0f1e99", "web", "/opt/containerd-shim-godwit-v1") // an id is web too
	c.add(t, "default", "55aa11", "queue", godwitRuntime)
	c.add(t, "default", "55aa12", "nginx", "io.containerd.runc.v2")
	c.add(t, "default", "77aa", "twin", godwitRuntime)
	c.add(t, "default", "77bb", "twin", godwitRuntime)
	c.add(t, "k8s.io", "66aa", "db", godwitRuntime)
	for ref, want := range map[string]string{
		"default/web": "default/web", "db": "default/0f1e2d", "k8s.io/db": "k8s.io/66aa",
		"0f1e2d": "default/0f1e2d", "0f1e9": "default/0f1e99", "7a3": "default/7a31c0", "7a9": "default/7a99ff",
		"55aa": "default/55aa11", "7a31gone": "default/7a31gone", "queue": "default/55aa11",
	} {
		if vm, err := client.Resolve(t.Context(), ref); err != nil || key(vm) != want {
			t.Errorf("%s = %v, %v; want %s", ref, vm, err, want)
		}
	}
	for ref, want := range map[string][]string{"7a": {"default/7a31c0", "default/7a99ff"},
		"0f1": {"default/0f1e2d", "default/0f1e99"}, "twin": {"default/77aa", "default/77bb"},
		"web": {"default/0f1e99", "default/web"}} {
		_, err := client.Resolve(t.Context(), ref)
		several, ok := errors.AsType[*AmbiguousError](err)
		if !ok || !slices.Equal(several.Candidates, want) || !errdefs.IsInvalidArgument(err) ||
			!strings.Contains(err.Error(), want[0]) {
			t.Errorf("%s: %v, want %v", ref, err, want)
		}
	}
	for ref, is := range map[string]func(error) bool{"nowhere": errdefs.IsNotFound, "nginx": errdefs.IsFailedPrecondition,
		"55aa12": errdefs.IsFailedPrecondition, ".*": errdefs.IsNotFound, `"`: errdefs.IsNotFound,
		"a/b/c": errdefs.IsInvalidArgument, "": errdefs.IsInvalidArgument, "x/": errdefs.IsInvalidArgument} {
		if vm, err := client.Resolve(t.Context(), ref); !is(err) {
			t.Errorf("%q = %v, %v", ref, vm, err)
		}
	}
}

// A VM is found by the name that its record has, wherever it is. Another node that calls its VM like one of this node
// takes nothing over: the name is ambiguous, and each of them is found by its id. The id of a VM of this node is never
// another one's name.
func TestResolveByTheNameOfARecord(t *testing.T) {
	d, c, client := newNode(t)
	named := func(id, node, name string) *nodev1.VMInfo {
		v := info(id, node)
		v.Name = name
		return v
	}
	d.vms = []*nodev1.VMInfo{named("aa11", "b", "moved"), named("bb22", "b", "twice"), named("cc33", "c", "twice"),
		named("dd44", "rogue", "mine"), named("ee55", "rogue", "own"), named("ff66", "a", "here"),
		{Vm: &nodev1.VM{Namespace: "default", Id: "99"}, Status: "removed", Name: "moved"}}
	c.add(t, "default", "0101", "mine", godwitRuntime)
	c.add(t, "default", "own", "own", godwitRuntime)
	c.add(t, "default", "ff66", "here", godwitRuntime)
	for ref, want := range map[string]string{"moved": "default/aa11", "own": "default/own", "here": "default/ff66",
		"default/dd44": "default/dd44", "0101": "default/0101"} {
		if vm, err := client.Resolve(t.Context(), ref); err != nil || key(vm) != want {
			t.Errorf("%s = %v, %v; want %s", ref, vm, err, want)
		}
	}
	// The id of a VM of another node is the name of one that is not here.
	d.vms = append(d.vms, info("moved", "rogue"))
	for _, ref := range []string{"twice", "mine", "default/mine", "moved"} {
		vm, err := client.Resolve(t.Context(), ref)
		if several, ok := errors.AsType[*AmbiguousError](err); !ok || len(several.Candidates) != 2 {
			t.Errorf("%s = %v, %v", ref, vm, err)
		}
	}
	if vm, err := client.Resolve(t.Context(), "default/moved"); err != nil || key(vm) != "default/moved" {
		t.Errorf("a whole id: %v, %v", vm, err)
	}
	c.fails = errdefs.ErrUnavailable.WithMessage("containerd is away")
	if vm, err := client.Resolve(t.Context(), "moved"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("while containerd is away: %v, %v", vm, err)
	}
	c.fails = nil
	d.vms = d.vms[:len(d.vms)-1]
	d.warning = "a part of the list is away"
	if vm, err := client.Resolve(t.Context(), "moved"); !errdefs.IsUnavailable(err) {
		t.Errorf("in a part of the list: %v, %v", vm, err)
	}
}

// A list that could not be read whole is never "not found", and no proof that a beginning is the only one. A whole id
// and a name of this node's containerd need no other list.
func TestResolveWithoutLists(t *testing.T) {
	lost := errdefs.ErrUnavailable.WithMessage("the disk of records is away")
	for name, breaks := range map[string]func(*daemon, *ctrd){
		"the daemon fails":     func(d *daemon, _ *ctrd) { d.fails = lost },
		"a part is not listed": func(d *daemon, _ *ctrd) { d.warning = lost.Error() },
		"containerd fails":     func(_ *daemon, c *ctrd) { c.fails = lost },
		"NotFound is no list":  func(_ *daemon, c *ctrd) { c.fails = errdefs.ErrNotFound.WithMessage(lost.Error()) },
	} {
		d, c, client := newNode(t)
		d.vms = []*nodev1.VMInfo{info("7a31c0", "b")}
		c.add(t, "default", "0f1e2d", "db", godwitRuntime)
		breaks(d, c)
		for _, ref := range []string{"nowhere", "7a3"} {
			if vm, err := client.Resolve(t.Context(), ref); !errdefs.IsUnavailable(err) ||
				!strings.Contains(strings.ToLower(err.Error()), lost.Error()) {
				t.Errorf("%s: %s = %v, %v", name, ref, vm, err)
			}
		}
		if c.fails == nil {
			if vm, err := client.Resolve(t.Context(), "db"); err != nil || vm.GetId() != "0f1e2d" {
				t.Errorf("%s: a name of this node: %v, %v", name, vm, err)
			}
		} else if vm, err := client.Resolve(t.Context(), "7a31c0"); err != nil || vm.GetId() != "7a31c0" {
			t.Errorf("%s: a whole id: %v, %v", name, vm, err)
		}
	}
	client := New(WithDaemon(t.TempDir()+"/d"), WithContainerd(t.TempDir()+"/c"))
	defer client.Close()
	if _, err := client.Resolve(t.Context(), "web"); !errdefs.IsUnavailable(err) {
		t.Errorf("nobody answers: %v", err)
	}
}

// A digest is found by its beginning, as godwit ps prints it. A whole one needs no list. A list that is not whole
// proves nothing.
func TestResolveSnapshot(t *testing.T) {
	d, _, client := newNode(t)
	web, db := &nodev1.VM{Namespace: "default", Id: "web"}, &nodev1.VM{Namespace: "default", Id: "db"}
	d.snapshots = []*nodev1.SnapshotInfo{{Vm: web, Digest: digest("ab12")}, {Vm: db, Digest: digest("ab34")},
		{Vm: db, Digest: digest("cd")}, {Vm: web, Digest: digest("cd")}}
	for ref, want := range map[string]string{"ab1": digest("ab12"), "sha256:ab3": digest("ab34"), "cd": digest("cd"),
		digest("ff"): digest("ff"), digest("ab12")[:19]: digest("ab12")} {
		if got, err := client.ResolveSnapshot(t.Context(), ref, nil); err != nil || got != want {
			t.Errorf("%s = %s, %v", ref, got, err)
		}
	}
	if got, err := client.ResolveSnapshot(t.Context(), "ab", web); err != nil || got != digest("ab12") {
		t.Errorf("of one VM: %s, %v", got, err)
	}
	_, err := client.ResolveSnapshot(t.Context(), "ab", nil)
	if several, ok := errors.AsType[*AmbiguousError](err); !ok || len(several.Candidates) != 2 {
		t.Errorf("two begin so: %v", err)
	}
	if _, err := client.ResolveSnapshot(t.Context(), "ee", nil); !errdefs.IsNotFound(err) {
		t.Errorf("none begins so: %v", err)
	}
	d.snapshots[0].Name, d.snapshots[1].Name, d.snapshots[2].Name = "before-upgrade", "before-upgrade", "ABC"
	for ref, vm := range map[string]*nodev1.VM{"before-upgrade": web, "ABC": nil} {
		if got, err := client.ResolveSnapshot(t.Context(), ref, vm); err != nil || ref == "ABC" && got != digest("cd") ||
			vm == web && got != digest("ab12") {
			t.Errorf("name %s: %s, %v", ref, got, err)
		}
	}
	_, err = client.ResolveSnapshot(t.Context(), "before-upgrade", nil)
	if several, ok := errors.AsType[*AmbiguousError](err); !ok || len(several.Candidates) != 2 {
		t.Errorf("two VMs have that name: %v", err)
	}
	if _, err := client.ResolveSnapshot(t.Context(), "before-upgrde", nil); !errdefs.IsNotFound(err) ||
		!strings.Contains(err.Error(), "Did you mean before-upgrade?") {
		t.Errorf("no snapshot has that name: %v", err)
	}
	for _, ref := range []string{"", "sha256:", "-web", "a/b", "sha512:00", digest("00") + "0"} {
		if _, err := client.ResolveSnapshot(t.Context(), ref, nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", ref, err)
		}
	}
	d.warning = "pending deletions: away"
	for _, ref := range []string{"ee", "ab1", "ABC", "nothing-of-it"} {
		if _, err := client.ResolveSnapshot(t.Context(), ref, nil); !errdefs.IsUnavailable(err) {
			t.Errorf("%s in a part of the list: %v", ref, err)
		}
	}
}
