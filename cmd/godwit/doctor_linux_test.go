package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm/kvm"
)

func TestRights(t *testing.T) {
	all := ^uint64(0)
	for _, c := range []struct {
		name      string
		have      uint64
		ok, fatal bool
	}{
		{"all", all, true, false},
		{"none", 0, false, true},
		{"no CAP_NET_ADMIN", all &^ (1 << unix.CAP_NET_ADMIN), false, true},
		{"no CAP_SYS_RESOURCE", all &^ (1 << unix.CAP_SYS_RESOURCE), false, false},
	} {
		f := rights(c.have)
		if f.OK != c.ok || f.Fatal != c.fatal || (f.Remedy == "") != c.ok {
			t.Errorf("%s: %+v", c.name, f)
		}
		if missing, ok := strings.CutPrefix(c.name, "no "); ok && !strings.Contains(f.Detail, missing) {
			t.Errorf("%s: %q does not name it", c.name, f.Detail)
		}
	}
}

func TestKVMAndDevices(t *testing.T) {
	dir := t.TempDir()
	host := kvm.Host{Device: filepath.Join(dir, "kvm"), Modules: dir}
	if f := checkKVM(host); f.OK || f.Fatal || !strings.Contains(f.Detail, host.Device) {
		t.Errorf("without a device: %+v", f)
	}
	if err := os.WriteFile(host.Device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f := checkKVM(host); f.OK || !strings.Contains(f.Detail, "kvm_intel") {
		t.Errorf("without a module: %+v", f)
	}
	if err := os.Mkdir(filepath.Join(dir, "kvm_amd"), 0o700); err != nil {
		t.Fatal(err)
	}
	if f := checkKVM(host); !f.OK {
		t.Errorf("with both: %+v", f)
	}
	if f := checkDevice("d", filepath.Join(dir, "none")); f.OK || f.Remedy == "" {
		t.Errorf("a device that is not there: %+v", f)
	}
}

func TestCgroupVersions(t *testing.T) {
	dir := t.TempDir()
	if f := checkCgroup(dir); f.OK || f.Remedy == "" {
		t.Errorf("nothing mounted: %+v", f)
	}
	for _, c := range []struct{ file, want string }{{"memory", "version 1"}, {"cgroup.controllers", "version 2"}} {
		if err := os.WriteFile(filepath.Join(dir, c.file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if f := checkCgroup(dir); !f.OK || f.Detail != c.want {
			t.Errorf("%s: %+v", c.file, f)
		}
	}
}

// The test binary is the process that doctor tracks when it is told so.
func TestMain(m *testing.M) {
	if tracked(os.Args[1:]) {
		return
	}
	m.Run()
}

// A way that was asked for is fine, also if there are better ones.
func TestTracking(t *testing.T) {
	if f := checkTracking(t.Context(), "content"); !f.OK || f.Detail != "content" || f.Remedy != "" {
		t.Errorf("got %+v", f)
	}
	if f := checkTracking(t.Context(), "auto"); f.OK != (f.Remedy == "") || f.Detail == "" {
		t.Errorf("got %+v", f)
	}
}
