package agentd

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"

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

// Service implements agentv1.AgentService for one container, or for those of a pod.
type Service struct {
	opts     Options
	children *children
	forks    *forks
	network  nicSetup
	before   func(step string) error // of making a container; nil but in tests

	begun    sync.Once  // Started
	setupMu  sync.Mutex // serialises Prepare, Setup and SetupPod
	held     bool       // by Prepare
	prepared bool       // so is the rest
	pod      atomic.Pointer[pod]

	mu         sync.Mutex
	spare      *spare                // of Prepare; nil once it is used
	sparePause *spare                // the same, of a guest that is to be a pod
	containers map[string]*container // that of Setup always, those of a pod from AddContainer on
	removed    []string              // ids of containers that were there
	volumes    map[string]*volume
	processes  map[string]*process
	// connections to ports of localhost, by ids that no process has
	connections map[string]*connection
	starting    map[string]starting
	sizes       map[string]unix.Winsize // of terminals that do not exist yet
	barred      []string                // ids that nothing starts under any more

	usersMu sync.Mutex // serialises the making of user namespaces
	users   map[string]*users

	signals   sync.Mutex // serialises signals
	delivered []uint64   // names of the last ones

	clockMu sync.Mutex
	clock   wallClock
	awakeAt int64 // what the last Restored said
}

// starting is a start under way.
type starting struct {
	box  *container
	over chan struct{} // closed then
	kill func()        // ends what is about to become the process; nil: nothing is. s.mu is held
}

// New returns the service. The caller is process 1 of the guest.
func New(opts Options) (*Service, error) {
	group, err := makeCgroup(cgroup(opts.CgroupRoot), "container")
	if err != nil {
		return nil, err
	}
	s := newService(newContainer("", group, opts.Dir))
	s.opts, s.children = opts, newChildren()
	return s, nil
}

func newService(main *container) *Service {
	return &Service{
		forks:      newForks(),
		network:    newNICSetup(),
		containers: map[string]*container{"": main}, volumes: make(map[string]*volume),
		processes: make(map[string]*process), connections: make(map[string]*connection), starting: make(map[string]starting),
		sizes: make(map[string]unix.Winsize), users: make(map[string]*users), clock: realtime{},
	}
}

// main is the container of Setup, also before it is set up.
func (s *Service) main() *container {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.containers[""]
}

// reached lets a test fail a step.
func (s *Service) reached(step string) error {
	if s.before == nil {
		return nil
	}
	return s.before(step)
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
		Features: []string{"pod", "connect"},
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
		if err := s.forbidStart(ctx, r.Id, unix.Signal(r.Signal)); err != nil {
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
	if c := p.container(); r.All && r.Id == c.id {
		return c.cgroup.signalAll(sig)
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
	if s.removeConnection(r.Id) {
		return &agentv1.RemoveResponse{}, nil
	}
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
