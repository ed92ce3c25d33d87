// Package cloudhypervisor runs VMs with Cloud Hypervisor (53 or newer) under KVM. It
// implements vmm.Driver; the shim starts VMs with it and adopts them.
//
// The VMM gets its sockets and files as descriptors and is confined to the paths of its VM. It is spoken to over its
// HTTP API alone, and runs on when its maker ends. docs/dev/vmm.md says why it is driven the way it is.
package cloudhypervisor

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
)

// Name of this VMM in vmm.Facts and spec.VMM.
const Name = "cloud-hypervisor"

// cleanupTimeout bounds what is undone after a failure.
const cleanupTimeout = 10 * time.Second

// Driver starts VMs with one Cloud Hypervisor binary.
type Driver struct {
	Binary string // path, or name in PATH; empty: cloud-hypervisor
	Log    *slog.Logger
	// Remember answers what find once found for the same files; nil: find is called. It
	// keeps the binary's version, which every start needs and which takes a process.
	Remember func(kind string, paths []string, find func() (string, error)) (string, error)

	// AllowRoot starts a VM whose RAM is root's, in a VMM that is root without capabilities.
	AllowRoot bool
	// Host is where KVM is looked for; zero: this host.
	Host kvm.Host

	bare     bool // of tests: their fake stays among the files of the host
	landlock func() bool
	mtu      func(tap, mtu int) error
}

var _ vmm.Driver = (*Driver)(nil)

// New fills in d's defaults. It does not look at the binary: Probe does.
func New(d Driver) *Driver {
	if d.Binary == "" {
		d.Binary = "cloud-hypervisor"
	}
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.Remember == nil {
		d.Remember = func(_ string, _ []string, find func() (string, error)) (string, error) { return find() }
	}
	if d.Host == (kvm.Host{}) {
		d.Host = kvm.Default
	}
	if d.landlock == nil {
		d.landlock = hasLandlock
	}
	if d.mtu == nil {
		d.mtu = setMTU
	}
	return &d
}

// Start makes a VM that has not executed an instruction; it is killed if ctx ends first.
func (d *Driver) Start(ctx context.Context, cfg vmm.Config) (vmm.Machine, error) {
	m, err := d.start(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("start VM %s: %w", cfg.Name, err)
	}
	return m, nil
}

func (d *Driver) start(ctx context.Context, cfg vmm.Config) (*Machine, error) {
	if err := check(cfg); err != nil {
		return nil, err
	}
	if missing := d.Host.Missing(); missing != nil {
		return nil, fmt.Errorf("KVM does not work here: %w: %w", missing, errdefs.ErrFailedPrecondition)
	}
	f, err := openFiles(cfg, d.AllowRoot, d.confined())
	if err != nil {
		return nil, err
	}
	plan := d.plan(cfg, f)
	m, err := d.launch(cfg, f, plan)
	if err != nil {
		return nil, errors.Join(err, f.Close(), plan.close(), cleanUp(cfg.Dir, cfg.Agent, cfg.Serial))
	}
	if err := f.Close(); err != nil {
		d.Log.Warn("close files passed to the VMM", "vm", cfg.Name, "error", err)
	}
	if err = m.prepare(ctx); err == nil {
		m.log.Debug("VM started", "vm", cfg.Name, "version", m.api.version)
		return m, nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	return nil, errors.Join(fmt.Errorf("%w%s", err, logTail(cfg.Dir)), m.Kill(undo))
}

// launch starts the process, whose machine then watches it.
func (d *Driver) launch(cfg vmm.Config, f *files, plan *plan) (_ *Machine, err error) {
	binary, err := exec.LookPath(d.Binary)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
	}
	events, err := openEvents(cfg.Dir)
	if err != nil {
		return nil, err
	}
	proc, err := process.Launch{
		Args: []string{binary, "--api-socket", "fd=" + f.api, "--event-monitor", "fd=" + f.events, "--seccomp", "true"},
		FDs:  f.FDs(), Out: f.console, Log: f.log, NetNS: cfg.NetNS, Cgroup: cfg.Cgroup, User: f.user,
		Confined: d.confined(), Device: d.Host.Device,
		Userfault: cfg.Track >= vmm.TrackWrites, Waits: cfg.Track == vmm.TrackPages,
		// It asks for the MTU of a tap by the tap's name.
		Offline: cfg.NetNS == "" && len(cfg.NICs) == 0 && d.confined(),
	}.Start()
	if err != nil {
		return nil, errors.Join(err, events.Close())
	}
	proc.LogUntracked(d.Log, cfg.Name)
	m := newMachine(d.Log, vmm.Process{
		PID: proc.PID, StartTime: proc.StartTime, Boot: proc.Boot, Dir: cfg.Dir, Control: controlPath(cfg.Dir),
		Work: f.work, Agent: cfg.Agent, VSock: true, Serial: cfg.Serial, Reboots: cfg.Reboots, Memory: cfg.Memory,
		Console: process.LogPath(cfg.Console), Userfault: proc.Userfault,
	}, proc)
	m.plan, m.mtu, m.confined = plan, d.mtu, d.confined()
	m.follow(events)
	return m, nil
}

// Adopt takes over the VM of p. NotFound if its process is gone.
func (d *Driver) Adopt(ctx context.Context, p vmm.Process) (vmm.Machine, error) {
	proc, err := process.Adopt(p.PID, p.StartTime, p.Boot)
	if err != nil {
		return nil, fmt.Errorf("adopt VM: %w", err)
	}
	p.Boot = proc.Boot
	torn := p.Halting
	p.Halting = false
	m := newMachine(d.Log, p, proc)
	m.mtu, m.confined, m.torn = d.mtu, d.confined(), torn
	if err := errors.Join(m.identify(ctx), m.publish()); err != nil {
		return nil, errors.Join(fmt.Errorf("adopt VM: %w", err), proc.Close())
	}
	events, err := openEvents(p.Dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("adopt VM: %w", err), proc.Close())
	}
	m.follow(events)
	return m, nil
}

// confined tells whether a VMM gets namespaces of its own: root alone can make them.
func (d *Driver) confined() bool { return os.Geteuid() == 0 && !d.bare }

func controlPath(dir string) string { return filepath.Join(dir, "api.sock") }

// logPath is where the VMM says what goes wrong.
func logPath(dir string) string { return filepath.Join(dir, "cloud-hypervisor.log") }

func logTail(dir string) string { return process.LogTail(logPath(dir), "Cloud Hypervisor") }

// cleanUp removes what a VM leaves in its directory, its log excepted.
func cleanUp(dir, agent, serial string) error {
	return errors.Join(process.RemoveSockets(controlPath(dir)), cleanRest(dir, agent, serial))
}

// cleanRest removes all of it but the API's socket.
func cleanRest(dir, agent, serial string) error {
	sockets := []string{agent, eventsPath(dir)}
	if serial != "" {
		sockets = append(sockets, serial)
	}
	return errors.Join(process.RemoveSockets(sockets...), os.RemoveAll(workDir(dir)))
}
