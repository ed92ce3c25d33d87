package qemu

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/qemu/qmptest"
	"godwit.dev/godwit/vmm/vmmtest"
)

// TestMain is QEMU when the environment says so: fakeQEMU makes a script that does.
func TestMain(m *testing.M) {
	if how := os.Getenv("FAKE_QEMU"); how != "" {
		if err := runFake(how, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "fake QEMU:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runFake serves QMP on the descriptor that the command line names.
func runFake(how string, args []string) error {
	s := &qmptest.Server{Status: "prelaunch", How: how, Silent: os.Getenv("FAKE_SILENT") != "",
		Saves: os.Getenv("FAKE_SAVES") != ""}
	s.Exit = func() { fmt.Fprintln(os.Stderr, "fake QEMU: it was told to go"); os.Exit(3) }
	var err error
	if s.FailAt, err = strconv.Atoi(os.Getenv("FAKE_AT")); err != nil {
		return err
	}
	pid := os.Getenv("FAKE_PID")
	s.Late = func() bool { return vmmtest.Told(pid + lets) }
	s.Stuck = func() { vmmtest.Tell(pid + waits) }
	s.Full, _ = strconv.Atoi(os.Getenv("FAKE_FULL"))
	s.Mute, _ = strconv.Atoi(os.Getenv("FAKE_MUTE"))
	s.Untold = how == "untold"
	if how == "works" || s.Untold {
		s.How = ""
	}
	if slices.Contains(args, "defer") {
		s.Status = "inmigrate"
	}
	fd := -1
	for _, arg := range args {
		if rest, ok := strings.CutPrefix(arg, "socket,id=qmp,fd="); ok {
			number, _, _ := strings.Cut(rest, ",")
			if fd, err = strconv.Atoi(number); err != nil {
				return err
			}
		}
		if rest, ok := strings.CutPrefix(arg, "virtio-net-pci,id="); ok {
			id, _, _ := strings.Cut(rest, ",")
			s.NICs = append(s.NICs, id)
		}
	}
	if err := os.WriteFile(pid, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		return err
	}
	l, err := net.FileListener(os.NewFile(uintptr(fd), "qmp"))
	if err != nil {
		return err
	}
	return s.Serve(l.(*net.UnixListener))
}

// fake is a driver whose QEMU goes wrong at call number at.
type fake struct {
	*Driver
	pidFile string
}

func fakeQEMU(t *testing.T, how string, at int, env ...string) fake {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pidFile := filepath.Join(dir, "pid")
	env = append(env, "FAKE_QEMU="+how, "FAKE_AT="+strconv.Itoa(at), "FAKE_PID="+pidFile)
	script := fmt.Sprintf("#!/bin/sh\nexport %s\nexec %s \"$@\"\n", strings.Join(env, " "), self)
	binary := filepath.Join(dir, "qemu")
	if err := os.WriteFile(binary, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := New(Driver{Binary: binary, Accel: "tcg", AllowRoot: true, bare: true})
	if err != nil {
		t.Fatal(err)
	}
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
		Name: "default/a,b", Dir: dir, Memory: 2 << 20, VCPUs: 2, RAM: file("ram", 2<<20),
		Kernel: file("kernel", 0).Name(), Initrd: file("initrd", 0).Name(), Cmdline: "console=ttyS0 a,b",
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
