package shim

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	sandbox "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/events"
	"godwit.dev/godwit/shim/sandboxapi"
)

// Service is containerd's task service, version 3, for one task, and godwit's machine
// service for the same VM.
type Service struct {
	life     context.Context
	shutdown shutdown.Service
	events   *events.Queue
	log      *slog.Logger
	join     func(*config.Config) (*Host, error)

	mu    sync.Mutex
	vm    *VM
	tasks map[string]*Task // by containerd's id
	asked bool             // to shut down
	idle  *time.Timer      // until the shim ends, which no client asks for a task
	stays bool             // without a task too
	bound time.Duration    // idleBound, as it was when the shim began
}

// NewService is ready for the Create of its task. join makes the host that the task's
// configuration describes.
func NewService(ctx context.Context, p events.Publisher, sd shutdown.Service,
	join func(*config.Config) (*Host, error)) *Service {
	log := slog.Default()
	s := &Service{life: ctx, shutdown: sd, events: events.NewQueue(ctx, p, log), log: log, join: join, bound: idleBound}
	sd.RegisterCallback(func(context.Context) error {
		s.events.Close()
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = time.AfterFunc(s.bound, s.endIdle)
	return s
}

// idleBound is how long a shim has no task before its first one. containerd, which may have waited 100 s for the shim,
// asks at once. One that was killed before it knew of the shim never does. A variable for the tests.
var idleBound = 3 * time.Minute

// endIdle ends a shim that has no task. A Create that comes now finds the lock taken, and then a shim that ends.
func (s *Service) endIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.vm == nil {
		s.log.Warn("no client has asked for a task: the shim ends", "bound", s.bound)
		s.idle = nil
		s.shutdown.Shutdown()
	}
}

// RegisterTTRPC serves both services on containerd's socket, and the sandbox API for the same task.
func (s *Service) RegisterTTRPC(server *ttrpc.Server) error {
	taskapi.RegisterTTRPCTaskService(server, s)
	sandbox.RegisterTTRPCSandboxService(server, sandboxapi.New(s.life, s.log, s, s))
	machinev1.RegisterMachineService(server, &machineService{find: s.current})
	return nil
}

// current answers the VM of this shim.
func (s *Service) current() (*VM, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.vm == nil {
		return nil, fmt.Errorf("task is not created: %w", errdefs.ErrNotFound)
	}
	return s.vm, nil
}

func (s *Service) task(id string) (*Task, error) {
	s.mu.Lock()
	t, created := s.tasks[id], s.vm != nil
	s.mu.Unlock()
	switch {
	case !created:
		return nil, fmt.Errorf("task is not created: %w", errdefs.ErrNotFound)
	case t == nil:
		return nil, fmt.Errorf("task %s: %w", id, errdefs.ErrNotFound)
	case t.gone():
		return nil, fmt.Errorf("task %s is deleted: %w", id, errdefs.ErrNotFound)
	}
	return t, nil
}

// gone reports whether the task is not there for containerd any more, or not yet: until
// Create has written the journal there is nothing to answer from.
func (t *Task) gone() bool {
	vm := t.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return t.state == TaskNew || t.state == TaskDeleted || vm.journal.Load() == nil || t.init == nil ||
		t.member != nil && t.state == TaskCreating
}

// toGRPC is err as a gRPC status, which is what ttrpc carries.
func toGRPC(err error) error { return errgrpc.ToGRPC(record.Plain(err)) }

// on runs fn for the task of that id; errors leave as gRPC status.
func on[R any](s *Service, id string, fn func(*Task) (R, error)) (R, error) {
	t, err := s.task(id)
	if err != nil {
		var none R
		return none, toGRPC(err)
	}
	r, err := fn(t)
	return r, toGRPC(err)
}

// Create makes the task; see create_vm.go.
func (s *Service) Create(ctx context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, toGRPC(err)
	}
	s.mu.Lock()
	if pod := s.vm; pod != nil {
		s.mu.Unlock()
		return s.createMember(ctx, pod, r)
	}
	if s.idle == nil {
		s.mu.Unlock()
		return nil, toGRPC(fmt.Errorf("create task %s: the shim has waited for it for %v, and ends: try again: %w",
			r.GetID(), s.bound, errdefs.ErrUnavailable))
	}
	s.idle.Stop()
	name, err := bundle.VMName(r.GetBundle(), r.GetID())
	if err != nil { // what is wrong with the bundle is refused when it is read
		name = r.GetID()
	}
	vm := newVM(s.life, s.log, s.events, ns, name, r.GetID())
	s.vm, s.tasks = vm, map[string]*Task{r.GetID(): vm.owner}
	s.mu.Unlock()
	pid, err := vm.create(ctx, r, s.join)
	close(vm.owner.created)
	if err != nil {
		s.mu.Lock()
		s.vm, s.tasks = nil, nil
		s.idle.Reset(s.bound)
		asked := s.asked
		s.mu.Unlock()
		vm.log.Error("create task", "error", err)
		if ctx.Err() != nil { // containerd died over it: no client is left to end this shim
			s.shutdown.Shutdown()
		}
		if asked { // no client comes back for it
			s.shutdown.Shutdown()
		}
		return nil, toGRPC(implemented(err))
	}
	if vm.origin.arrival != nil {
		go vm.origin.arrival.run()
	}
	return &taskapi.CreateTaskResponse{Pid: pid}, nil
}

// implemented keeps containerd from taking a refusal by Create for a shim of an older
// API: it would go on with that one, tell the user of nothing but its absence, and not
// shut the shim down.
func implemented(err error) error {
	if errdefs.IsNotImplemented(err) {
		return fmt.Errorf("%s: %w", err, errdefs.ErrInvalidArgument)
	}
	return err
}

// Connect answers at any time, also for ids that are not known.
func (s *Service) Connect(_ context.Context, asked *taskapi.ConnectRequest) (*taskapi.ConnectResponse, error) {
	r := &taskapi.ConnectResponse{ShimPid: uint32(os.Getpid()), Version: "3"}
	vm, err := s.current()
	if err != nil {
		return r, nil
	}
	t, err := s.task(asked.GetID())
	if err != nil {
		t = vm.owner
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	r.TaskPid = t.pid()
	return r, nil
}
