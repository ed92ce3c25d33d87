package node

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// empty is a node without VMs.
func empty(t *testing.T) *Machines {
	cfg := config.Default()
	cfg.StateDir, cfg.RunDir, cfg.RAMDir = t.TempDir(), t.TempDir(), t.TempDir()
	return &Machines{Config: cfg}
}

func put(t *testing.T, path string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, nil, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// starve takes all free descriptors from this process.
func starve(t *testing.T) (feed func()) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	feed = func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) }
	t.Cleanup(feed)
	return feed
}

// TestWithoutDescriptors shows that a process that has none left takes no VM for gone: neither by
// its list, nor by its look for one VM, nor by a question to a shim.
func TestWithoutDescriptors(t *testing.T) {
	m, vm := empty(t), &nodev1.VM{Namespace: "ns", Id: "vm"}
	put(t, filepath.Join(m.Config.VMDir("ns", "vm"), "node.json"))
	other := &nodev1.VM{Namespace: "ns", Id: "other"}
	feed := starve(t)
	vms, lerr := m.List()
	known, kerr := m.Known(other)
	_, qerr := m.Query(t.Context(), vm)
	_, oerr := m.Query(t.Context(), other)
	feed()
	if !errors.Is(lerr, syscall.EMFILE) {
		t.Errorf("list = %v, %v", vms, lerr)
	}
	if known || !errors.Is(kerr, syscall.EMFILE) {
		t.Errorf("known = %v, %v", known, kerr)
	}
	if !errdefs.IsUnavailable(qerr) || !errdefs.IsUnavailable(oerr) {
		t.Errorf("query = %v, of a VM that is not here %v", qerr, oerr)
	}
	if vms, err := m.List(); err != nil || len(vms) != 1 {
		t.Errorf("list with descriptors = %v, %v", vms, err)
	}
	if known, err := m.Known(other); known || err != nil {
		t.Errorf("known with descriptors = %v, %v", known, err)
	}
}

// TestListInParts shows that a namespace that cannot be read hides no VM of another one, and is told.
func TestListInParts(t *testing.T) {
	m := empty(t)
	if vms, err := m.List(); err != nil || len(vms) != 0 {
		t.Fatalf("a node that never had a VM: %v, %v", vms, err)
	}
	put(t, filepath.Join(m.Config.VMDir("good", "vm"), "node.json"))
	put(t, filepath.Join(m.Config.VMsDir(), "file")) // no namespace
	if vms, err := m.List(); err != nil || len(vms) != 1 || vms[0].GetId() != "vm" {
		t.Fatalf("list = %v, %v", vms, err)
	}
	if err := os.RemoveAll(m.Config.VMsDir()); err != nil {
		t.Fatal(err)
	}
	put(t, m.Config.VMsDir())
	if vms, err := m.List(); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("list of what is no directory = %v, %v", vms, err)
	}
}

// TestKnown shows what proves that nothing of a VM is here: neither journal nor RAM, below
// directories that are there.
func TestKnown(t *testing.T) {
	vm := &nodev1.VM{Namespace: "ns", Id: "vm"}
	for name, tt := range map[string]struct {
		make    func(t *testing.T, m *Machines)
		known   bool
		unknown bool
	}{
		"nothing": {func(*testing.T, *Machines) {}, false, false},
		"a directory without journal": {func(t *testing.T, m *Machines) {
			put(t, filepath.Join(m.Config.VMDir("ns", "vm"), "adopt.log"))
		}, false, false},
		"a journal": {func(t *testing.T, m *Machines) {
			put(t, filepath.Join(m.Config.VMDir("ns", "vm"), "node.json"))
		}, true, false},
		"RAM alone": {func(t *testing.T, m *Machines) {
			put(t, m.Config.RAMFile("ns", "vm"))
		}, true, false},
		"no state directory": {func(_ *testing.T, m *Machines) { m.Config.StateDir += "/away" }, false, true},
		"no RAM directory":   {func(_ *testing.T, m *Machines) { m.Config.RAMDir += "/away" }, false, true},
		"a namespace that is a file": {func(t *testing.T, m *Machines) {
			put(t, filepath.Join(m.Config.VMsDir(), "ns"))
		}, false, true},
	} {
		m := empty(t)
		tt.make(t, m)
		known, err := m.Known(vm)
		if known != tt.known || (err != nil) != tt.unknown {
			t.Errorf("%s: known = %v, %v", name, known, err)
		}
		if _, err := m.Query(t.Context(), vm); errdefs.IsNotFound(err) != (!tt.known && !tt.unknown) {
			t.Errorf("%s: query = %v", name, err)
		}
	}
}
