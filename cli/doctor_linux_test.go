package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
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
	if os.Getenv("GODWIT_CLI") != "" { // the test is the program that a shell asks
		os.Exit(Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	if socket := os.Getenv(listenEnv); socket != "" { // the test is a daemon that doctor starts
		listenForever(socket)
	}
	if Tracked(os.Args[1:]) {
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

// Doctor says what auto comes to here, and why; only an order that cannot be obeyed is missed.
func TestLazyRestoreOfDoctor(t *testing.T) {
	no := errors.New("no userfaultfd")
	for _, c := range []struct {
		restore  string
		obstacle error
		ok       bool
		detail   string
	}{
		{"eager", nil, true, "works, restore is eager"},
		{"eager", no, true, "no userfaultfd, restore is eager"},
		{"lazy", nil, true, "works, restore is lazy"},
		{"lazy", no, false, "no userfaultfd, restore is lazy"},
		{"auto", nil, true, "works, restore is auto: lazy for VMs of QEMU with 256MiB of RAM or more in their snapshot, " +
			"else eager"},
		{"auto", no, true, "no userfaultfd, restore is auto: eager"},
	} {
		if f := lazyFinding(c.restore, c.obstacle); f.OK != c.ok || f.Fatal || (f.Remedy == "") != c.ok ||
			f.Detail != c.detail {
			t.Errorf("%+v: %+v", c, f)
		}
	}
	cfg := config.Default()
	cfg.Worker.Restore, cfg.Worker.Tracking = config.RestoreAuto, "content"
	if f := checkLazy(t.Context(), cfg); !f.OK || !strings.Contains(f.Detail, "tracked by content") ||
		!strings.HasSuffix(f.Detail, "auto: eager") {
		t.Errorf("without uffd: %+v", f)
	}
	cfg.RAMHugePages = 2 << 20
	if f := checkLazy(t.Context(), cfg); !f.OK || !strings.Contains(f.Detail, "ram_huge_pages") {
		t.Errorf("on huge pages: %+v", f)
	}
	cfg = config.Default()
	cfg.Worker.Restore = config.RestoreAuto
	if f := checkLazy(t.Context(), cfg); !f.OK || !strings.Contains(f.Detail, "restore is auto: ") {
		t.Errorf("as this host is: %+v", f)
	}
}

// One VMM is enough where the host decides; what the configuration names has to run.
func TestVMMsThatAreMissed(t *testing.T) {
	for _, c := range []struct {
		kind           string
		hypervisor, q  bool // run
		fatalH, fatalQ bool
	}{
		{"auto", true, true, false, false}, {"auto", true, false, false, false}, {"auto", false, true, false, false},
		{"auto", false, false, false, true},
		{"", true, false, false, false}, {"", false, false, false, true},
		{"qemu", true, false, false, true}, {"qemu", false, true, false, false}, {"qemu", false, false, false, true},
		{"cloud-hypervisor", false, true, true, false}, {"cloud-hypervisor", true, false, false, false},
		{"cloud-hypervisor", false, false, true, false},
	} {
		h, q := finding{OK: c.hypervisor}, finding{OK: c.q}
		if weigh(c.kind, &h, &q); h.Fatal != c.fatalH || q.Fatal != c.fatalQ {
			t.Errorf("%+v: fatal %v, %v", c, h.Fatal, q.Fatal)
		}
	}
}

// RAM lies on what the configuration names: small pages or huge ones.
func TestRAMOfTheConfiguredPages(t *testing.T) {
	for _, c := range []struct {
		name string
		st   unix.Statfs_t
		page uint64
		says string // empty: all is well
	}{
		{"tmpfs", unix.Statfs_t{Type: unix.TMPFS_MAGIC, Bsize: 4096}, 0, ""},
		{"huge", unix.Statfs_t{Type: unix.HUGETLBFS_MAGIC, Bsize: 2 << 20}, 2 << 20, ""},
		{"larger pages", unix.Statfs_t{Type: unix.HUGETLBFS_MAGIC, Bsize: 1 << 30}, 2 << 20, "2048 KiB"},
		{"tmpfs instead of huge pages", unix.Statfs_t{Type: unix.TMPFS_MAGIC, Bsize: 4096}, 2 << 20, "2048 KiB"},
		{"huge, not configured", unix.Statfs_t{Type: unix.HUGETLBFS_MAGIC, Bsize: 2 << 20}, 0, "huge pages"},
		{"a disk", unix.Statfs_t{Type: unix.EXT4_SUPER_MAGIC, Bsize: 4096}, 0, "not a tmpfs"},
		{"a disk instead of huge pages", unix.Statfs_t{Type: unix.EXT4_SUPER_MAGIC, Bsize: 4096}, 2 << 20,
			"no file system of huge pages"},
	} {
		detail, remedy := ramFault(&c.st, c.page)
		if (detail == "") != (c.says == "") || (remedy == "") != (c.says == "") || !strings.Contains(detail, c.says) {
			t.Errorf("%s: %q, %q", c.name, detail, remedy)
		}
	}
}

// What port-forward of pods lacks is a warning: pods run without it.
func TestForwardIsChecked(t *testing.T) {
	if f := checkForward(nil); !f.OK || f.Remedy != "" {
		t.Errorf("a kernel that has it: %+v", f)
	}
	f := checkForward(unix.EPERM)
	if f.OK || f.Fatal || !strings.Contains(f.Detail, unix.EPERM.Error()) || !strings.Contains(f.Remedy, "5.9") {
		t.Errorf("a kernel that refuses: %+v", f)
	}
}
