package tasks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	gocni "github.com/containerd/go-cni"
	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/fdtest"
	"godwit.dev/godwit/network"
)

// fakeCNI remembers its leases by id and path, and fails a call by its name.
type fakeCNI struct {
	held  map[string]bool
	calls []string
	fail  map[string]int  // how often the call fails
	mtu   int             // of the interface that it makes
	empty map[string]bool // files of namespaces that are none
}

func (f *fakeCNI) call(name string) error {
	f.calls = append(f.calls, name)
	if f.fail[name] > 0 {
		f.fail[name]--
		return fmt.Errorf("%s: %w", name, errdefs.ErrInternal)
	}
	return nil
}

func (f *fakeCNI) Setup(_ context.Context, id, path string, opts ...gocni.NamespaceOpts) (*gocni.Result, error) {
	f.held[id+" "+path] = true // also before it fails, as plugins do
	return nil, f.call(fmt.Sprintf("setup %d", len(opts)))
}

func (f *fakeCNI) Remove(_ context.Context, id, path string, _ ...gocni.NamespaceOpts) error {
	if err := f.call("remove"); err != nil {
		return err
	}
	if f.empty[path] {
		return errors.New("unknown FS magic on " + path) // as the plugin loopback says
	}
	maps.DeleteFunc(f.held, func(lease string, _ bool) bool {
		return lease == id+" "+path || path == "" && strings.HasPrefix(lease, id+" ")
	})
	return nil
}

func (f *fakeCNI) GetConfig() *gocni.ConfigResult { return &gocni.ConfigResult{} }

func newFake(t *testing.T) (*networks, *fakeCNI) {
	f := &fakeCNI{held: map[string]bool{}, fail: map[string]int{}, mtu: 1500, empty: map[string]bool{}}
	return &networks{
		dir: t.TempDir(), plugins: func() (leases, error) { return f, nil },
		add: func(path string) error {
			file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return errors.Join(err, errdefs.ErrAlreadyExists)
			}
			return errors.Join(f.call("add"), file.Close())
		},
		is:     func(path string) (bool, error) { return !f.empty[path], nil },
		remove: func(path string) error { return errors.Join(f.call("delete"), os.Remove(path)) },
		read: func(context.Context, string) ([]network.Link, error) {
			return []network.Link{{Interface: "eth0", Found: network.Found{MTU: f.mtu}}}, f.call("read")
		},
	}, f
}

func (n *networks) made() (all []string) {
	paths, _ := filepath.Glob(filepath.Join(n.dir, "*", "*"))
	for _, p := range paths {
		rel, _ := filepath.Rel(n.dir, p)
		all = append(all, rel)
	}
	return all
}

var nics = []spec.NIC{{ID: "net0", MAC: "02:00:00:00:00:01", MTU: 1500,
	Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}}}

// Names that join to the same text share no namespace; what one order undoes is
// not the other VM's.
func TestEqualNamesShareNoNamespace(t *testing.T) {
	n, _ := newFake(t)
	first, second := &nodev1.VM{Namespace: "a", Id: "b-c"}, &nodev1.VM{Namespace: "a-b", Id: "c"}
	if err := n.connect(t.Context(), first, nics); err != nil {
		t.Fatal(err)
	}
	if err := n.undo(t.Context(), second); err != nil { // it made nothing
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a/b-c"}, n.made()); diff != "" {
		t.Fatalf("after the undo of another VM (-want +got):\n%s", diff)
	}
	if err := n.connect(t.Context(), second, nics); err != nil {
		t.Fatalf("second VM: %v", err)
	}
	if err := n.undo(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a/b-c"}, n.made()); diff != "" {
		t.Errorf("after the second VM (-want +got):\n%s", diff)
	}
}

// An order that made no network gives no lease back: it may be that of a VM which runs.
func TestUndoOfNothing(t *testing.T) {
	n, f := newFake(t)
	if err := n.undo(t.Context(), &nodev1.VM{Namespace: "a", Id: "b"}); err != nil || len(f.calls) > 0 {
		t.Errorf("%v, calls %v", err, f.calls)
	}
}

// A namespace that a killed godwitd has made does not stop the order when it is tried
// again, and its lease is not leaked.
func TestConnectAfterACrash(t *testing.T) {
	vm := &nodev1.VM{Namespace: "a", Id: "b"}
	for _, died := range []string{"before CNI", "after CNI", "while it is deleted"} {
		n, f := newFake(t)
		if died != "before CNI" {
			if err := n.connect(t.Context(), vm, nics); err != nil {
				t.Fatal(err)
			}
			f.empty[n.path(vm)] = died == "while it is deleted"
			remove := n.remove
			n.remove = func(path string) error { delete(f.empty, path); return remove(path) }
		} else if err := errors.Join(os.MkdirAll(filepath.Join(n.dir, "a"), 0o700), n.add(n.path(vm))); err != nil {
			t.Fatal(err)
		}
		if err := n.connect(t.Context(), vm, nics); err != nil {
			t.Fatalf("%s: %v", died, err)
		}
		if err := n.undo(t.Context(), vm); err != nil || len(n.made()) > 0 || len(f.held) > 0 {
			t.Errorf("%s: %v; left %v, leases %v", died, err, n.made(), f.held)
		}
	}
}

// Every call of connect fails once: undo leaves nothing.
func TestConnectFails(t *testing.T) {
	vm := &nodev1.VM{Namespace: "a", Id: "b"}
	for _, name := range []string{"add", "setup 0", "read"} {
		n, f := newFake(t)
		f.fail["setup 2"], f.fail[name] = 1, 1
		if err := n.connect(t.Context(), vm, nics); !errdefs.IsInternal(err) {
			t.Errorf("%s fails: %v", name, err)
		}
		if err := n.undo(t.Context(), vm); err != nil || len(n.made()) > 0 || len(f.held) > 0 {
			t.Errorf("%s fails: undo %v; left %v, leases %v", name, err, n.made(), f.held)
		}
	}
	for _, name := range []string{"remove", "delete"} { // undo can be repeated
		n, f := newFake(t)
		if err := n.connect(t.Context(), vm, nics); err != nil {
			t.Fatal(err)
		}
		f.fail[name] = 1
		if err := n.undo(t.Context(), vm); !errdefs.IsInternal(err) {
			t.Errorf("%s fails: %v", name, err)
		}
		_ = n.undo(t.Context(), vm)
		if len(n.made()) > 0 || len(f.held) > 0 {
			t.Errorf("%s failed once: left %v, leases %v", name, n.made(), f.held)
		}
	}
}

// Addresses that are not a plugin's to give are given up, and its lease with them.
func TestAddressesAreAskedFor(t *testing.T) {
	n, f := newFake(t)
	f.fail["setup 2"] = 1
	if err := n.connect(t.Context(), &nodev1.VM{Namespace: "a", Id: "b"}, nics); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"add", "setup 2", "remove", "setup 0", "read"}, f.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// A VM that leaves gives back the lease of a namespace that ctr or nerdctl made, and
// leaves the namespace to them. Without CNI there is no lease.
func TestRelease(t *testing.T) {
	n, f := newFake(t)
	vm := &nodev1.VM{Namespace: "a", Id: "b"}
	f.held["a-b "] = true
	if err := n.release(t.Context(), vm); err != nil || len(f.held) > 0 || slices.Contains(f.calls, "delete") {
		t.Errorf("%v, leases %v, calls %v", err, f.held, f.calls)
	}
	if err := n.connect(t.Context(), vm, nics); err != nil {
		t.Fatal(err)
	}
	if err := n.release(t.Context(), vm); err != nil || len(n.made()) > 0 || len(f.held) > 0 {
		t.Errorf("own: %v, left %v, leases %v", err, n.made(), f.held)
	}
	none := config.CNI{ConfDir: t.TempDir(), BinDir: t.TempDir()}
	n.plugins = func() (leases, error) { return cni(none) }
	if err := n.release(t.Context(), vm); err != nil {
		t.Errorf("without CNI: %v", err)
	}
	for left := range 2 {
		restore := fdtest.Exhaust(t, left)
		err := n.release(t.Context(), vm)
		restore()
		if left == 0 && err == nil {
			t.Error("a configuration that could not be read is taken for none, and a lease is kept for good")
		}
	}
}

func TestStdio(t *testing.T) {
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	for _, c := range []struct {
		configured, order, want string
		terminal                bool
		is                      func(error) bool
	}{
		{want: ""},
		{configured: "null://", want: ""},
		{configured: "file:///log/{namespace}/{id}", want: "file:///log/default/web"},
		{configured: "file:///log/x", order: "file:///log/y", want: "file:///log/y"},
		{configured: "file:///log/x", order: "null://", want: ""},
		{order: "binary:///bin/logger?id={id}", terminal: true, want: "binary:///bin/logger?id=web"},
		{order: "http://host/x", is: errdefs.IsInvalidArgument},
		{order: "file://%zz", is: errdefs.IsInvalidArgument},
	} {
		client := &Client{config: &config.Config{StdioURI: c.configured}}
		creator, err := client.stdio(vm, c.order, c.terminal)
		if c.is != nil {
			if !c.is(err) {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		io, err := creator("web")
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if got := io.Config(); got.Stdout != c.want || got.Terminal != c.terminal {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}
