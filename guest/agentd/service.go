package agentd

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/stage"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Options of a Service.
type Options struct {
	Version string
	// Dir is a directory for mount points, on a tmpfs.
	Dir string
	// CgroupRoot is where cgroup v2 is mounted.
	CgroupRoot string
	// Ready is called before the first Setup goes on: the boot loads what it needs for
	// disks in the background.
	Ready func() error
	// Greeted is called at the first call that says that the guest is a VM of its own.
	Greeted func()
	// Hold loads what a container may need and lets no driver have a device: Ready and
	// Network do, in each copy of this guest.
	Hold func() error
	// Network is called before a NIC is looked for: drivers of NICs come no earlier.
	Network func() error
	// Started is called in the background, once, a while after the container's init has
	// started: the boot loads what no container waits for.
	Started func()
	// Poke tells the session that a lane has something to send.
	Poke func()
	// Log takes a line for the console.
	Log func(format string, args ...any)
}

// Service implements agentv1.AgentService for one container.
type Service struct {
	opts     Options
	children *children
	cgroup   cgroup

	begun   sync.Once  // Started
	setupMu sync.Mutex // serialises Setup, Copy, Restored and Start of the init
	setup   *agentv1.SetupRequest
	filter  *stage.Seccomp // of every process; written once, before the first Start
	persona uint64
	rootfs  string
	held    bool     // by Prepare
	spare   *spare   // too; nil once it is used
	waiting *child   // the container's init until it has its process
	init    *process // nil before Setup
	refused error    // why the init could not be started

	mu        sync.Mutex
	processes map[string]*process
	starting  map[string]chan struct{} // closed when the start is over
	sizes     map[string]unix.Winsize  // of terminals that do not exist yet
	barred    []string                 // ids that nothing starts under any more

	signals   sync.Mutex // serialises signals
	delivered []uint64   // names of the last ones

	clockMu sync.Mutex
	clock   wallClock
	awakeAt int64 // what the last Restored said
}

// New returns the service. The caller is process 1 of the guest.
func New(opts Options) (*Service, error) {
	cg, err := makeCgroup(opts.CgroupRoot)
	if err != nil {
		return nil, err
	}
	return &Service{
		opts: opts, children: newChildren(), cgroup: cg,
		processes: make(map[string]*process), starting: make(map[string]chan struct{}),
		sizes: make(map[string]unix.Winsize), clock: realtime{},
	}, nil
}

// Info implements agentv1.AgentService.
func (s *Service) Info(context.Context, *agentv1.InfoRequest) (*agentv1.InfoResponse, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("ask kernel version: %w", err)
	}
	id, uptime, err := boot()
	if err != nil {
		return nil, err
	}
	s.opts.Greeted()
	return &agentv1.InfoResponse{
		BootId: id, Version: s.opts.Version, UptimeMs: uptime, Kernel: unix.ByteSliceToString(u.Release[:]),
	}, nil
}

// boot says which boot of the kernel this is and how old.
func boot() (id string, uptimeMS uint64, err error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", 0, fmt.Errorf("read boot id: %w", err)
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return "", 0, fmt.Errorf("read uptime: %w", err)
	}
	return strings.TrimSpace(string(data)), uint64(time.Duration(ts.Nano()).Milliseconds()), nil
}

// find returns a process that was started.
func (s *Service) find(id string) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.processes[id]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("process %q: %w", id, errdefs.ErrNotFound)
}

// Wait implements agentv1.AgentService.
func (s *Service) Wait(ctx context.Context, r *agentv1.WaitRequest) (*agentv1.WaitResponse, error) {
	p, err := s.find(r.Id)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.done:
		return p.exit(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Kill implements agentv1.AgentService.
func (s *Service) Kill(ctx context.Context, r *agentv1.KillRequest) (*agentv1.KillResponse, error) {
	if r.Never {
		if err := s.forbidStart(ctx, r.Id); err != nil {
			return nil, err
		}
	}
	err := s.signalOnce(r)
	if r.Never && errdefs.IsNotFound(err) {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return &agentv1.KillResponse{}, nil
}

// deliveredMax is how many names of signals are kept. A call is repeated as soon as its session
// is lost, and no host has so many calls under way.
const deliveredMax = 256

// signalOnce delivers a signal unless one of its name was delivered.
func (s *Service) signalOnce(r *agentv1.KillRequest) error {
	s.signals.Lock()
	defer s.signals.Unlock()
	if r.Once != 0 && slices.Contains(s.delivered, r.Once) {
		return nil
	}
	err := s.signal(r)
	if err == nil && r.Once != 0 {
		s.note(r.Once)
	}
	return err
}

func (s *Service) note(once uint64) {
	s.delivered = append(s.delivered, once)
	s.delivered = s.delivered[max(0, len(s.delivered)-deliveredMax):]
}

func (s *Service) signal(r *agentv1.KillRequest) error {
	p, err := s.find(r.Id)
	if err != nil {
		return err
	}
	if r.Signal > 64 {
		return fmt.Errorf("signal %d: %w", r.Signal, errdefs.ErrInvalidArgument)
	}
	sig := unix.Signal(r.Signal)
	if r.All && r.Id == "" {
		return s.cgroup.signalAll(sig)
	}
	err = s.children.signal(p.spawned, sig)
	if err == unix.ESRCH {
		return fmt.Errorf("process %q already finished: %w", r.Id, errdefs.ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("signal process %q: %w", r.Id, err)
	}
	return nil
}

// Remove implements agentv1.AgentService.
func (s *Service) Remove(_ context.Context, r *agentv1.RemoveRequest) (*agentv1.RemoveResponse, error) {
	p, err := s.find(r.Id)
	if err != nil {
		return nil, err
	}
	if !p.exited() {
		return nil, fmt.Errorf("remove process %q: it runs: %w", r.Id, errdefs.ErrFailedPrecondition)
	}
	s.mu.Lock()
	delete(s.processes, r.Id)
	s.mu.Unlock()
	p.forget()
	return &agentv1.RemoveResponse{}, nil
}

// Processes implements agentv1.AgentService.
func (s *Service) Processes(context.Context, *agentv1.ProcessesRequest) (*agentv1.ProcessesResponse, error) {
	pids, err := s.cgroup.pids()
	if err != nil {
		return nil, err
	}
	r := &agentv1.ProcessesResponse{Processes: s.list()}
	for _, p := range r.Processes {
		delete(pids, p.Pid)
	}
	for _, pid := range slices.Sorted(maps.Keys(pids)) {
		r.Others = append(r.Others, &agentv1.Process{Pid: pid})
	}
	return r, nil
}

func (s *Service) list() (list []*agentv1.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		list = append(list, p.info())
	}
	return list
}
