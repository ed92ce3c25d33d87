package vmmtest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm"
)

// fakeDriver simulates VMs: a sleeping process stands for the VMM, a goroutine for the
// guest, which counts in the RAM file. wrong, if not empty, names the wrong answer that
// it gives; see TestEachClauseFails.
type fakeDriver struct {
	wrong string

	mu   sync.Mutex
	left map[int]*fakeVM // detached, by pid
}

type fakeVM struct {
	d    *fakeDriver
	cfg  vmm.Config
	cmd  *exec.Cmd
	stop chan struct{} // ends the guest
	over chan struct{} // the guest has ended

	mu      sync.Mutex
	running bool
	waiting bool // for LoadState
	saved   int
	nics    []vmm.NIC
	disks   []vmm.Disk // in hot slots
	texts   map[string]string
	way     vmm.EventKind // how the guest ended the VM
	events  chan vmm.Event
	done    chan struct{}
	exit    vmm.Exit
	start   uint64
}

func (d *fakeDriver) Probe(context.Context) (vmm.Facts, error) {
	return vmm.Facts{Name: "fake", BareTemplates: true}, nil
}

func (d *fakeDriver) Start(ctx context.Context, cfg vmm.Config) (vmm.Machine, error) {
	for _, path := range []string{filepath.Join(cfg.Dir, "control.sock"), cfg.Agent} {
		if err := makeSocket(path); err != nil {
			return nil, err
		}
	}
	bad := ctx.Err()
	if len(cfg.Disks) > 1 && cfg.Disks[0].Slot == cfg.Disks[1].Slot {
		bad = errdefs.ErrInvalidArgument
	}
	if bad != nil && d.wrong != "failed start passes" {
		if d.wrong != "failed start leaves sockets" {
			removeAll(cfg)
		}
		return nil, bad
	}
	v := &fakeVM{
		d: d, cfg: cfg, cmd: exec.Command("sleep", "600"), waiting: cfg.Incoming, nics: cfg.NICs,
		disks: slices.Clone(cfg.Disks[min(1, len(cfg.Disks)):]), texts: map[string]string{},
		stop: make(chan struct{}), over: make(chan struct{}), start: 1,
		events: make(chan vmm.Event, 64), done: make(chan struct{}),
	}
	if err := v.cmd.Start(); err != nil {
		return nil, err
	}
	// As a VMM does, keep descriptors of one's own.
	console, err := dup(cfg.Console)
	if err != nil {
		return nil, err
	}
	ram, err := dup(cfg.RAM)
	if err != nil {
		return nil, err
	}
	disk, err := v.firstDisk()
	if err != nil {
		return nil, err
	}
	if cfg.Template && d.wrong == "a copy has no NIC" {
		v.nics = nil
	}
	v.running = d.wrong == "start runs"
	go v.guest(console, ram, disk)
	go v.reap()
	return v, nil
}

func (d *fakeDriver) Adopt(_ context.Context, p vmm.Process) (vmm.Machine, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.left[p.PID]
	if v == nil || p.StartTime != v.start && d.wrong != "adopt ignores start time" {
		return nil, errdefs.ErrNotFound
	}
	if d.wrong == "adopt resets" {
		v.mu.Lock()
		defer v.mu.Unlock()
		_, err := v.cfg.RAM.WriteAt(make([]byte, 16), 0)
		return v, err
	}
	return v, nil
}

func (v *fakeVM) Detach() error {
	v.d.mu.Lock()
	defer v.d.mu.Unlock()
	if v.d.left == nil {
		v.d.left = map[int]*fakeVM{}
	}
	v.d.left[v.cmd.Process.Pid] = v
	return nil
}

// guest counts in RAM: boot at 0, n at 8.
func (v *fakeVM) guest(console, ram, disk *os.File) {
	defer close(v.over)
	defer console.Close()
	defer ram.Close()
	defer disk.Close()
	for {
		select {
		case <-v.stop:
			return
		case <-time.After(time.Millisecond):
		}
		v.mu.Lock()
		if v.running {
			v.count(console, ram, disk)
		}
		v.mu.Unlock()
	}
}

func (v *fakeVM) count(console, ram, disk *os.File) {
	var mem [16]byte
	ram.ReadAt(mem[:], 0)
	boot, n := binary.LittleEndian.Uint64(mem[:]), binary.LittleEndian.Uint64(mem[8:])+1
	if boot == 0 {
		boot = uint64(time.Now().UnixNano())
	}
	binary.LittleEndian.PutUint64(mem[:], boot)
	binary.LittleEndian.PutUint64(mem[8:], n)
	ram.WriteAt(mem[:], 0)
	macs := ""
	for _, nic := range v.nics {
		macs += nic.MAC + ","
	}
	macs += v.diskTexts()
	line := fmt.Sprintf("tick %d %d %s.\n", boot, n, macs)
	console.WriteString(line)
	if v.d.wrong != "disk is not ours" || !v.cfg.Incoming {
		disk.WriteAt([]byte(line), 0)
	}
	for way, kind := range map[string]vmm.EventKind{"poweroff": vmm.PoweredOff, "reset": vmm.Reset,
		"panic": vmm.Panicked} {
		if n == 3 && strings.Contains(v.cfg.Cmdline, "suite="+way) {
			v.ended(kind, ram)
		}
	}
}

func (v *fakeVM) ended(kind vmm.EventKind, ram *os.File) {
	if v.d.wrong == "reset boots again" && kind == vmm.Reset {
		ram.WriteAt(make([]byte, 16), 0)
		return
	}
	v.running, v.way = false, kind
	if v.d.wrong != "no event of "+string(kind) {
		v.event(kind, "")
	}
	v.cmd.Process.Kill()
}

func (v *fakeVM) event(kind vmm.EventKind, device string) {
	select {
	case v.events <- vmm.Event{Kind: kind, Device: device, Time: time.Now()}:
	default:
	}
}

func (v *fakeVM) reap() {
	v.cmd.Wait()
	close(v.stop)
	<-v.over
	v.mu.Lock()
	v.exit = vmm.Exit{Status: 137, Reason: string(v.way), At: time.Now()}
	if v.way == vmm.PoweredOff && v.d.wrong != "power-off is not clean" || v.way == vmm.Panicked &&
		v.d.wrong == "panic is clean" {
		v.exit.Clean, v.exit.Status = true, 0
	}
	v.mu.Unlock()
	if v.d.wrong != "kill leaves sockets" {
		removeAll(v.cfg)
	}
	close(v.events)
	close(v.done)
}

// answers waits like a monitor: while the process is stopped there is no answer.
func (v *fakeVM) answers(ctx context.Context) error {
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", v.cmd.Process.Pid))
		if err != nil {
			return errdefs.ErrUnavailable
		}
		if state := stat[strings.LastIndexByte(string(stat), ')')+2]; state != 'T' {
			return nil
		}
		if v.d.wrong == "hang passes" {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

func (v *fakeVM) run(on bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	wrong := v.d.wrong
	switch {
	case v.waiting && wrong != "incoming resumes":
		return errdefs.ErrFailedPrecondition
	case on == v.running && (wrong == "resume twice fails" && on || wrong == "pause twice fails" && !on && v.saved == 0):
		return errdefs.ErrFailedPrecondition
	case !on && wrong == "pause does nothing", on && wrong == "resume after save does nothing" && v.saved > 0:
		return nil
	}
	v.running = on
	kind := vmm.Paused
	if on {
		kind = vmm.Resumed
	}
	v.event(kind, "")
	return nil
}

func (v *fakeVM) Kill(context.Context) error {
	select {
	case <-v.done:
		if v.d.wrong == "kill twice fails" {
			return errors.New("no such process")
		}
		return nil
	default:
	}
	v.cmd.Process.Kill()
	<-v.done
	return nil
}

type fakeState struct {
	NICs []vmm.NIC
	Fill []byte
}

func (v *fakeVM) SaveState(_ context.Context, to *os.File) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.running && v.d.wrong != "save while running" {
		return errdefs.ErrFailedPrecondition
	}
	v.saved++
	state := fakeState{}
	if v.d.wrong == "RAM in the state" {
		state.Fill = make([]byte, 5<<20)
	}
	return json.NewEncoder(to).Encode(state)
}

func (v *fakeVM) LoadState(_ context.Context, from *os.File) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.waiting && v.d.wrong != "load anywhere" {
		return errdefs.ErrFailedPrecondition
	}
	var state fakeState
	data, err := io.ReadAll(from)
	if err = errors.Join(err, json.Unmarshal(data, &state)); err != nil && v.d.wrong != "garbage loads" {
		return err
	}
	v.waiting = false
	v.running = v.d.wrong == "load resumes"
	if v.d.wrong == "load boots fresh" {
		_, err = v.cfg.RAM.WriteAt(make([]byte, 16), 0)
		return err
	}
	return nil
}

func (v *fakeVM) AddNIC(_ context.Context, nic vmm.NIC) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.d.wrong == "add is lost after a restore" && v.cfg.Incoming {
		return nil
	}
	if len(v.nics) > 0 {
		return errdefs.ErrAlreadyExists
	}
	v.nics = []vmm.NIC{nic}
	return nil
}

func (v *fakeVM) PowerButton(context.Context) error { return nil }

func (v *fakeVM) RemoveNIC(_ context.Context, id string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.nics) == 0 || v.nics[0].ID != id {
		if v.d.wrong == "unknown NIC passes" {
			return nil
		}
		return errdefs.ErrNotFound
	}
	if v.d.wrong != "remove is not waited for" {
		v.nics = nil
	}
	v.event(vmm.DeviceRemoved, id)
	return nil
}

func (v *fakeVM) Ejected(context.Context, string) (bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.nics) == 0 || v.d.wrong == "everything is ejected", nil
}

func (v *fakeVM) Events() <-chan vmm.Event { return v.events }
func (v *fakeVM) Done() <-chan struct{}    { return v.done }

func (v *fakeVM) Exit() vmm.Exit {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.exit
}

func (v *fakeVM) Process() vmm.Process {
	v.mu.Lock()
	defer v.mu.Unlock()
	p := vmm.Process{PID: v.cmd.Process.Pid, StartTime: v.start, Dir: v.cfg.Dir, Agent: v.cfg.Agent}
	for _, nic := range v.nics {
		p.NICs = append(p.NICs, nic.ID)
	}
	for _, disk := range v.disks {
		p.Disks = append(p.Disks, disk.ID)
	}
	return p
}

func makeSocket(path string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}

func removeAll(cfg vmm.Config) {
	os.Remove(cfg.Agent)
	os.Remove(filepath.Join(cfg.Dir, "control.sock"))
}

func dup(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	ctlErr := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(ctlErr, err); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
