//go:build integration

// Package agent tests godwit-init in real VMs, through the host's half of the agent.
package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/cloudhypervisor"
	"godwit.dev/godwit/vmm/qemu"
	"godwit.dev/godwit/vmm/vmmtest"

	"github.com/containerd/continuity/pkg/ext4"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// machine is a VM made by a test. Its RAM file and disk stay for its next incarnation.
type machine struct {
	t      *testing.T
	dir    string
	driver vmm.Driver
	slot   int // of the first disk
	ram    *os.File
	disks  []vmm.Disk
	nics   []vmm.NIC
	round  int
	memory uint64
	track  vmm.Tracking
	hot    bool // disks can be plugged in
	mapped func(context.Context) error

	hotSlot int // the first
	plugged int // disks that were plugged in
	execs   int

	vm      vmm.Machine
	console string
	agent   *client.Agent
}

const memory = 256 << 20

// layer makes the erofs image of the tests: busybox and its links.
func layer(t *testing.T, dir string) string {
	t.Helper()
	tree := filepath.Join(dir, "tree")
	for _, d := range []string{"bin", "etc", "dev", "proc", "sys", "run", "tmp", "root", "data"} {
		if err := os.MkdirAll(filepath.Join(tree, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "cp", "/bin/busybox", filepath.Join(tree, "bin/busybox"))
	run(t, "chroot", tree, "/bin/busybox", "--install", "-s", "/bin")
	write(t, filepath.Join(tree, "etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n")
	write(t, filepath.Join(tree, "etc/secret"), "not executable\n")
	if err := os.Chmod(filepath.Join(tree, "tmp"), 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "layer.erofs")
	run(t, "mkfs.erofs", path, tree)
	return path
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

// newDriver is QEMU without KVM, or what the KVM ring says.
func newDriver(t *testing.T) (driver vmm.Driver, firstDisk, firstHot int) {
	t.Helper()
	if harness.VMM() == cloudhypervisor.Name {
		return cloudhypervisor.New(cloudhypervisor.Driver{Binary: os.Getenv("GODWIT_CLOUD_HYPERVISOR")}),
			cloudhypervisor.FirstDiskSlot, cloudhypervisor.FirstHotSlot
	}
	driver, err := qemu.New(qemu.Driver{Accel: cmp.Or(os.Getenv("GODWIT_ACCEL"), "tcg")})
	if err != nil {
		t.Fatal(err)
	}
	return driver, qemu.FirstDiskSlot, qemu.FirstHotSlot
}

// newMachine makes the files of a VM.
func newMachine(t *testing.T) *machine {
	t.Helper()
	driver, slot, hotSlot := newDriver(t)
	dir, err := os.MkdirTemp("/dev/shm", "agent")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: dir, driver: driver, slot: slot, hotSlot: hotSlot, memory: memory,
		console: filepath.Join(dir, "console")}
	t.Cleanup(m.close)
	if m.ram, err = os.Create(filepath.Join(dir, "ram")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.ram.Truncate(memory), m.ram.Chown(vmmtest.FirstUser, -1)); err != nil {
		t.Fatal(err)
	}
	rw := filepath.Join(dir, "rw.ext4")
	writable(t, rw)
	m.disk("layer0", layer(t, dir), true)
	m.disk("rw", rw, false)
	return m
}

// writable makes the disk that a container writes to.
func writable(t *testing.T, path string) {
	t.Helper()
	if err := ext4.Create(path, 256<<20, ext4.WithDir("/upper", 0o755, 0, 0),
		ext4.WithDir("/work", 0o755, 0, 0)); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) disk(id, path string, readOnly bool) {
	m.t.Helper()
	flags := os.O_RDWR
	if readOnly {
		flags = os.O_RDONLY
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	m.disks = append(m.disks, vmm.Disk{ID: id, Serial: id, Slot: m.slot + len(m.disks), File: f, ReadOnly: readOnly})
}

// incarnation starts the VMM's next process, which has not run yet.
func (m *machine) incarnation(incoming bool) {
	m.t.Helper()
	m.round++
	dir := filepath.Join(m.dir, fmt.Sprint(m.round))
	if err := os.Mkdir(dir, 0o700); err != nil {
		m.t.Fatal(err)
	}
	console, err := os.OpenFile(m.console, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		m.t.Fatal(err)
	}
	defer console.Close()
	boot, cmdline := guestDir(m.t), "console=ttyS0 quiet panic=-1"
	if harness.Nested() {
		cmdline += " " + harness.NestedCmdline
	}
	cfg := vmm.Config{
		Name: m.t.Name(), Dir: dir, Memory: m.memory, Track: m.track, VCPUs: 1, RAM: m.ram, Disks: m.disks, NICs: m.nics,
		HotDisks: m.hot, Mapped: m.mapped,
		Agent: m.socket(), Console: console, Incoming: incoming,
	}
	if !incoming {
		cfg.Kernel, cfg.Initrd = filepath.Join(boot, "vmlinuz"), filepath.Join(boot, "initramfs")
		cfg.Cmdline = cmdline
	}
	vm, err := m.driver.Start(m.t.Context(), cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	m.vm = vm
}

func guestDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../bin/guest")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "initramfs")); err != nil {
		t.Fatalf("make guest first: %v", err)
	}
	return dir
}

func (m *machine) socket() string { return filepath.Join(m.dir, fmt.Sprint(m.round), "agent.sock") }

// boot starts the VM and its agent.
func (m *machine) boot() *machine {
	m.t.Helper()
	m.incarnation(false)
	m.resume()
	m.connect()
	return m
}

func (m *machine) resume() {
	m.t.Helper()
	if err := m.vm.Resume(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) connect() {
	m.t.Helper()
	if err := m.connected(); err != nil {
		m.t.Fatal(err)
	}
}

// connected is connect for any goroutine: one that ends the test would leave those that wait for it.
func (m *machine) connected() error {
	opts := client.Options{BootTimeout: harness.Slow(60 * time.Second), Console: m.console}
	if m.vm.Process().VSock {
		opts.Dial = client.VSock(client.VSockPort)
	}
	a, err := client.Connect(m.t.Context(), m.socket(), opts)
	if err == nil {
		m.agent = a
	}
	return err
}

// move saves the VM, kills its process and restores it in a new one. before and after
// are called before the state is loaded and after the VM runs again.
func (m *machine) move(before, after func()) {
	m.t.Helper()
	ctx := m.t.Context()
	state, err := os.Create(filepath.Join(m.dir, "state"))
	if err != nil {
		m.t.Fatal(err)
	}
	defer state.Close()
	if err := m.vm.Pause(ctx); err != nil {
		m.t.Fatal(err)
	}
	if err := m.vm.SaveState(ctx, state); err != nil {
		m.t.Fatal(err)
	}
	if err := m.vm.Kill(ctx); err != nil {
		m.t.Fatal(err)
	}
	if _, err := state.Seek(0, 0); err != nil {
		m.t.Fatal(err)
	}
	m.incarnation(true)
	before()
	if err := m.vm.LoadState(ctx, state); err != nil {
		m.t.Fatal(err)
	}
	m.resume()
	after()
}

func (m *machine) close() {
	if m.agent != nil {
		m.agent.Close()
	}
	if m.vm != nil {
		if err := m.vm.Kill(context.Background()); err != nil { // t.Context is over
			m.t.Error(err)
		}
	}
	if m.t.Failed() {
		log, _ := os.ReadFile(m.console)
		m.t.Logf("console: %s", log)
	}
	os.RemoveAll(m.dir)
}

// setup makes the container with the mounts of every OCI spec.
func (m *machine) setup(change func(*agentv1.SetupRequest)) *machine {
	m.t.Helper()
	r := ociSetup()
	r.Writable, r.Hostname = &agentv1.Disk{Serial: "rw", Type: "ext4"}, "box"
	if change != nil {
		change(r)
	}
	if _, err := m.agent.Setup(m.t.Context(), r); err != nil {
		m.t.Fatal(err)
	}
	return m
}

// ociSetup is what every OCI spec asks for.
func ociSetup() *agentv1.SetupRequest {
	return &agentv1.SetupRequest{
		Layers: []*agentv1.Disk{{Serial: "layer0", Type: "erofs", ReadOnly: true}},
		Mounts: []*agentv1.Mount{
			{Type: "proc", Source: "proc", Target: "/proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Type: "tmpfs", Source: "tmpfs", Target: "/dev", Options: []string{"nosuid", "strictatime", "mode=755",
				"size=65536k"}},
			{Type: "devpts", Source: "devpts", Target: "/dev/pts", Options: []string{"nosuid", "noexec", "newinstance",
				"ptmxmode=0666", "mode=0620", "gid=5"}},
			{Type: "tmpfs", Source: "shm", Target: "/dev/shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777",
				"size=65536k"}},
			{Type: "mqueue", Source: "mqueue", Target: "/dev/mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
			{Type: "sysfs", Source: "sysfs", Target: "/sys", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Type: "cgroup", Source: "cgroup", Target: "/sys/fs/cgroup", Options: []string{"ro", "nosuid", "noexec", "nodev"}},
		},
		MaskedPaths:   []string{"/proc/kcore", "/sys/firmware"},
		ReadOnlyPaths: []string{"/proc/sys"},
	}
}

func process(args ...string) *specs.Process {
	return &specs.Process{Args: args, Cwd: "/", Env: []string{"PATH=/usr/bin:/bin"}}
}

// start starts a process with all streams.
func (m *machine) start(id string, p *specs.Process) error {
	return m.startIn("", id, p)
}

// startIn is start in a container of a pod.
func (m *machine) startIn(container, id string, p *specs.Process) error {
	data, err := json.Marshal(p)
	if err != nil {
		m.t.Fatal(err)
	}
	_, err = m.agent.Start(m.t.Context(), &agentv1.StartRequest{Id: id, Process: data, Stdin: true, Stdout: true,
		Stderr: true, Container: container})
	return err
}

// init starts a container that stays.
func (m *machine) init() *machine {
	m.t.Helper()
	if err := m.start("", process("sleep", "100000")); err != nil {
		m.t.Fatal(err)
	}
	return m
}

// result of a process that has run to its end.
type result struct {
	client.Exit
	Out, Err string
}

// exec runs a process to its end with in as its stdin.
func (m *machine) exec(id string, p *specs.Process, in string) (result, error) {
	if err := m.start(id, p); err != nil {
		return result{}, err
	}
	return m.finish(id, in), nil
}

func (m *machine) finish(id, in string) result {
	m.t.Helper()
	ctx := m.t.Context()
	s := m.agent.NewStreams(id, client.Offsets{})
	var out, errs bytes.Buffer
	done := make(chan error, 3)
	go func() { done <- s.CopyStdin(ctx, bytes.NewBufferString(in)) }()
	go func() { done <- s.CopyStdout(ctx, &out) }()
	go func() { done <- s.CopyStderr(ctx, &errs) }()
	e, err := m.agent.WaitExit(ctx, id)
	if err != nil {
		m.t.Errorf("wait %s: %v", id, err)
	}
	for range 3 {
		if err := <-done; err != nil {
			m.t.Errorf("streams of %s: %v", id, err)
		}
	}
	return result{e, out.String(), errs.String()}
}
