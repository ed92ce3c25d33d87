package cloudhypervisor

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/cloudhypervisor/chtest"
	"godwit.dev/godwit/vmm/kvm"
	"godwit.dev/godwit/vmm/vmmtest"
)

// TestMain is Cloud Hypervisor when the environment says so: fakeVMM makes a script that
// does.
func TestMain(m *testing.M) {
	if how := os.Getenv("FAKE_CH"); how != "" {
		if err := runFake(how, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "fake Cloud Hypervisor:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runFake serves the API on the descriptor that the command line names.
func runFake(how string, args []string) error {
	at, err := strconv.Atoi(os.Getenv("FAKE_AT"))
	if err != nil {
		return err
	}
	pid := os.Getenv("FAKE_PID")
	s := &chtest.Server{Version: os.Getenv("FAKE_VERSION"), How: how, FailAt: at, Silent: os.Getenv("FAKE_SILENT") != "",
		Lost: os.Getenv("FAKE_LOST") != "", Hasty: os.Getenv("FAKE_HASTY")}
	s.Late = func() bool { return vmmtest.Told(pid + lets) }
	s.Half, _ = strconv.Atoi(os.Getenv("FAKE_HALF")) // not set: 0
	s.Stuck = func() { vmmtest.Tell(pid + waits) }
	if how == "works" {
		s.How = ""
	}
	s.Exit = func() { fmt.Fprintln(os.Stderr, "fake: it was told to go"); os.Exit(3) }
	fds := map[string]*os.File{}
	for i, arg := range args {
		if number, ok := strings.CutPrefix(arg, "fd="); ok {
			fd, err := strconv.Atoi(number)
			if err != nil {
				return err
			}
			fds[args[i-1]] = os.NewFile(uintptr(fd), args[i-1])
		}
	}
	s.Events, s.Then = fds["--event-monitor"], os.Getenv("FAKE_EVENT")
	if err := os.WriteFile(pid, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		return err
	}
	l, err := net.FileListener(fds["--api-socket"])
	if err != nil {
		return err
	}
	return s.Serve(l.(*net.UnixListener))
}

// fake is a driver whose VMM goes wrong at call number at.
type fake struct {
	*Driver
	pidFile string
}

func fakeVMM(t *testing.T, how string, at int, env ...string) fake {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pidFile := filepath.Join(dir, "pid")
	env = append([]string{"FAKE_VERSION=53.0.0"}, append(env, "FAKE_CH="+how, "FAKE_AT="+strconv.Itoa(at),
		"FAKE_PID="+pidFile)...)
	var script strings.Builder
	script.WriteString("#!/bin/sh\n")
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		fmt.Fprintf(&script, "export %s='%s'\n", name, value)
	}
	fmt.Fprintf(&script, "exec %s \"$@\"\n", self)
	binary := filepath.Join(dir, "cloud-hypervisor")
	if err := os.WriteFile(binary, []byte(script.String()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "kvm_amd"), 0o700); err != nil {
		t.Fatal(err)
	}
	d := New(Driver{Binary: binary, AllowRoot: true, bare: true, Host: kvm.Host{Device: os.DevNull, Modules: dir},
		landlock: func() bool {
			return true
		},
		mtu: func(int, int) error { return nil }})
	return fake{d, pidFile}
}

// running tells whether the fake's process is there, a zombie included.
func (f fake) running(t *testing.T) bool {
	t.Helper()
	pid, err := os.ReadFile(f.pidFile)
	if os.IsNotExist(err) || err == nil && len(pid) == 0 { // not written yet
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = os.Stat("/proc/" + string(pid))
	return err == nil
}

// What a fake tells, and is told, by a file next to that of its pid.
const (
	waits = ".waits" // who asked it for something is made to wait
	lets  = ".lets"  // its guest lets go of what it was asked for
)

// waiting answers a context whose time is over once the fake makes its caller wait.
func (f fake) waiting(t *testing.T) context.Context {
	return vmmtest.Until(t.Context(), func() bool { return vmmtest.Told(f.pidFile + waits) })
}

// testConfig is a VM with two disks and a NIC.
func testConfig(t *testing.T) vmm.Config {
	t.Helper()
	dir := t.TempDir()
	file := func(name string, size int64) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		return f
	}
	return vmm.Config{
		Name: "default/a", Dir: dir, Memory: 2 << 20, VCPUs: 2, RAM: file("ram", 2<<20),
		Kernel: file("kernel", 0).Name(), Initrd: file("initrd", 0).Name(), Cmdline: "console=ttyS0 a",
		Disks: []vmm.Disk{
			{ID: "layer0", Serial: "l0", Slot: 8, File: file("layer0", 4096), ReadOnly: true},
			{ID: "rw", Serial: "rw", Slot: 9, File: file("rw", 4096)},
		},
		NICs:  []vmm.NIC{{ID: "net0", Slot: 4, MAC: "52:54:00:00:00:01", MTU: 1400, Tap: file("tap", 0)}},
		Agent: filepath.Join(dir, "agent.sock"), Console: file("console", 0),
	}
}

func fdCount(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// eventually polls a condition that needs no more than a moment.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Errorf("never: %s", what)
			return
		}
		time.Sleep(time.Millisecond)
	}
}
