// Package qemu runs VMs with QEMU (7.2 or newer), under KVM or under TCG on machines without it.
// It implements vmm.Driver; the shim starts VMs with it and adopts them.
//
// QEMU gets everything as descriptors, is spoken to over QMP alone, and goes on after the end of
// the process that made it. docs/dev/vmm.md says why its command line is what it is.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/kvm"
	"godwit.dev/godwit/vmm/process"
	"godwit.dev/godwit/vmm/qemu/qmp"
)

// Name of this VMM in vmm.Facts and spec.VMM.
const Name = "qemu"

// cleanupTimeout bounds what is undone after a failure.
const cleanupTimeout = 10 * time.Second

// Driver starts VMs with one QEMU binary.
type Driver struct {
	Binary    string // path, or name in PATH; empty: qemu-system-x86_64
	DataDir   string // firmware (-L), several with a colon between; empty: the binary's own
	ModuleDir string // loadable modules, for a QEMU outside its place; empty: the binary's own
	Accel     string // "kvm", "tcg"; empty or "auto": kvm where it works
	Log       *slog.Logger
	// Remember answers what find once found for the same files; nil: find is called. It
	// keeps the binary's version, which every start needs and which takes a process.
	Remember func(kind string, paths []string, find func() (string, error)) (string, error)

	// AllowRoot starts a VM whose RAM is root's, in a VMM that is root without capabilities.
	AllowRoot bool

	host kvm.Host
	bare bool // of tests: their fake stays among the files of the host
}

var _ vmm.Driver = (*Driver)(nil)

// New checks d and fills in its defaults. It does not look at the binary: Probe does.
func New(d Driver) (*Driver, error) {
	if d.Binary == "" {
		d.Binary = "qemu-system-x86_64"
	}
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.host == (kvm.Host{}) {
		d.host = kvm.Default
	}
	switch d.Accel {
	case "", "auto", "kvm", "tcg":
	default:
		return nil, fmt.Errorf("accel %q: use auto, kvm or tcg: %w", d.Accel, errdefs.ErrInvalidArgument)
	}
	return &d, nil
}

// Start makes a VM that has not executed an instruction; it is killed if ctx ends first.
func (d *Driver) Start(ctx context.Context, cfg vmm.Config) (_ vmm.Machine, err error) {
	p := vmm.Process{
		Dir: cfg.Dir, Control: filepath.Join(cfg.Dir, "qmp.sock"), Agent: cfg.Agent, Serial: cfg.Serial,
		Reboots: cfg.Reboots, Memory: cfg.Memory, Console: process.LogPath(cfg.Console),
	}
	if err := cfg.Check(p.Control, slots); err != nil {
		return nil, fmt.Errorf("start VM %s: %w", cfg.Name, err)
	}
	accel, _, err := d.accel()
	if err != nil {
		return nil, fmt.Errorf("start VM %s: %w", cfg.Name, err)
	}
	proc, err := d.launch(cfg, accel, p.Control)
	if err != nil {
		return nil, fmt.Errorf("start VM %s: %w", cfg.Name, err)
	}
	p.PID, p.StartTime, p.Boot, p.Userfault = proc.PID, proc.StartTime, proc.Boot, proc.Userfault
	proc.LogUntracked(d.Log, cfg.Name)
	m, err := d.attach(ctx, p, proc, cfg)
	if err == nil {
		m.log.Debug("VM started", "pid", p.PID, "accel", accel)
		return m, nil
	}
	return nil, fmt.Errorf("start VM %s: %w%s", cfg.Name, err, logTail(cfg.Dir))
}

// Adopt connects to the VM of p. NotFound if its process is gone; while the shim that
// had it is still connected, Adopt waits until ctx ends.
func (d *Driver) Adopt(ctx context.Context, p vmm.Process) (vmm.Machine, error) {
	proc, err := process.Adopt(p.PID, p.StartTime, p.Boot)
	if err != nil {
		return nil, fmt.Errorf("adopt VM: %w", err)
	}
	p.Boot = proc.Boot
	m, err := d.connect(ctx, p, proc)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("adopt VM: %w", err), proc.Close())
	}
	if err := errors.Join(m.release(ctx, p.NICs), m.releaseDisks(ctx, p.Disks)); err != nil {
		return nil, errors.Join(fmt.Errorf("adopt VM: %w", err), m.Detach())
	}
	return m, nil
}

// launch starts the process; its files are closed here in any case.
func (d *Driver) launch(cfg vmm.Config, accel, control string) (_ *process.Process, err error) {
	binary, err := exec.LookPath(d.Binary)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
	}
	log, err := process.OpenLog(logPath(cfg.Dir))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, err)
	}
	defer log.Close()
	device := ""
	if accel == "kvm" {
		device = d.host.Device
	}
	f, err := openFiles(cfg, control, d.AllowRoot)
	if err != nil {
		return nil, err
	}
	l := process.Launch{
		Args: d.line(cfg, accel, f), FDs: f.FDs(), Log: log, NetNS: cfg.NetNS, Cgroup: cfg.Cgroup, User: f.user,
		Confined: d.confined(), Device: device, Userfault: cfg.Track >= vmm.TrackWrites, Waits: cfg.Track == vmm.TrackPages,
		Offline: cfg.NetNS == "" && d.confined(), // taps are descriptors, wherever they lie
	}
	l.Args[0] = binary
	if d.ModuleDir != "" {
		l.Env = []string{"QEMU_MODULE_DIR=" + d.ModuleDir}
	}
	proc, err := l.Start()
	if err != nil {
		return nil, errors.Join(err, f.Close(), process.RemoveSockets(sockets(control, cfg.Agent, cfg.Serial)...))
	}
	if err := f.Close(); err != nil {
		d.Log.Warn("close files passed to QEMU", "vm", cfg.Name, "error", err)
	}
	return proc, nil
}

// attach makes the Machine of a process just started, or ends the process.
func (d *Driver) attach(ctx context.Context, p vmm.Process, proc *process.Process, cfg vmm.Config) (*Machine, error) {
	m, err := d.connect(ctx, p, proc)
	if err == nil && d.confined() {
		// It answers once it has opened what it needs. What it gets from here on comes by descriptor.
		err = proc.Seal()
	}
	if err == nil {
		err = m.prepare(ctx)
	}
	if err == nil {
		m.mapped = cfg.Mapped
	}
	if err == nil && cfg.Ahead {
		if err = m.keepIncoming(ctx); err == nil {
			err = m.warmAllocator(ctx)
		}
	}
	if err == nil {
		return m, nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if m != nil {
		return nil, errors.Join(err, m.Kill(undo), m.closeIncoming())
	}
	err = errors.Join(err, proc.Kill(), proc.Gone(undo))
	proc.Status()
	return nil, errors.Join(err, proc.Close(), process.RemoveSockets(sockets(p.Control, p.Agent, p.Serial)...))
}

// confined tells whether a VMM gets namespaces of its own: root alone can make them.
func (d *Driver) confined() bool { return os.Geteuid() == 0 && !d.bare }

func (d *Driver) connect(ctx context.Context, p vmm.Process, proc *process.Process) (*Machine, error) {
	m := newMachine(d.Log, p, proc)
	client, err := qmp.Dial(ctx, p.Control, m.handle)
	if err != nil {
		return nil, err
	}
	m.qmp = client
	devices, err := m.listDevices(ctx)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	m.info.NICs, m.info.Disks = idsOf(devices, nicID("")), idsOf(devices, hotID(""))
	go m.watch()
	return m, nil
}

func logPath(dir string) string { return filepath.Join(dir, "qemu.log") }

func logTail(dir string) string { return process.LogTail(logPath(dir), "QEMU") }
