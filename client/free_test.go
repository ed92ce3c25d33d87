package client

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// withRecords is a client of a node whose VMs may sleep, or be elsewhere.
func withRecords(t *testing.T) (*daemon, *ctrd, *Client) {
	t.Helper()
	d, ctr, c := newNode(t)
	c.configPath = filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(c.configPath, []byte("[controller]\naddress = '127.0.0.1:1'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return d, ctr, c
}

// That the records do not answer does not make a name free: a Create under it would wake the VM that has it.
func TestNameWithoutAnAnswerIsNotFree(t *testing.T) {
	for _, fails := range []error{errdefs.ErrUnavailable, errdefs.ErrUnknown, fmt.Errorf("late: %w", errdefs.ErrAborted)} {
		d, _, c := withRecords(t)
		d.fails = fails
		if err := c.free(t.Context(), "web"); err == nil || !errdefs.IsUnavailable(err) && errdefs.IsUnavailable(fails) {
			t.Errorf("records that say %v: %v", fails, err)
		}
	}
	d, _, c := withRecords(t)
	if err := c.free(t.Context(), "web"); err != nil {
		t.Errorf("a name that no record has: %v", err)
	}
	d.fails = errdefs.ErrUnavailable
	c.configPath = filepath.Join(t.TempDir(), "none.toml")
	if err := os.WriteFile(c.configPath, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.free(t.Context(), "web"); err != nil {
		t.Errorf("a node without records: %v", err)
	}
}

// A VM whose process has ended is not removed while it is not known whether it sleeps, or has moved.
func TestEndedVMIsNotRemovedUnasked(t *testing.T) {
	d, ctr, c := withRecords(t)
	vm := ctr.web(t)
	d.vms = []*nodev1.VMInfo{{Vm: vm, Owner: &nodev1.Owner{Digest: digest("a")}}}
	if left, err := c.RemoveEnded(t.Context(), vm); left == nil || err != nil {
		t.Errorf("one that sleeps: left %v, error %v", left, err)
	}
	d.fails = errdefs.ErrUnavailable
	if left, err := c.RemoveEnded(t.Context(), vm); left != nil || !errdefs.IsUnavailable(err) {
		t.Errorf("one of which nothing is known: left %v, error %v", left, err)
	}
	if _, err := c.loaded(within(t.Context(), vm), vm); err != nil {
		t.Errorf("its container is gone: %v", err)
	}
}

// What `run` made goes if it cannot start it. A record that its shim did not make stays, with its snapshots.
func TestRunForgetsOnlyWhatItsShimMade(t *testing.T) {
	for name, fails := range map[string]func(*daemon){
		"the records do not answer": func(d *daemon) { d.fails = errdefs.ErrUnavailable },
		"it sleeps by now": func(d *daemon) {
			vm := &nodev1.VM{Namespace: "default", Id: "web"}
			d.vms = []*nodev1.VMInfo{{Vm: vm, Owner: &nodev1.Owner{Digest: digest("a")}}}
		},
		"it is refused": nil, // by the shim
	} {
		d, ctr, c := withRecords(t)
		vm, want := ctr.web(t), 1
		if fails != nil {
			fails(d)
			want = 0
		}
		if _, err := c.runMade(t.Context(), vm, &Streams{}); err == nil {
			t.Errorf("%s: it has started", name)
		}
		if d.forgotten != want {
			t.Errorf("%s: %d records were removed, want %d", name, d.forgotten, want)
		}
		ctx := namespaces.WithNamespace(t.Context(), vm.GetNamespace())
		if _, err := ctr.store.Get(ctx, vm.GetId()); !errdefs.IsNotFound(err) {
			t.Errorf("%s: its container: %v", name, err)
		}
	}
}
