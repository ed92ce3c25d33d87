package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/migrate/history"
)

// talker is a containerd that tells events. Its list of namespaces fails so many times.
type talker struct {
	kept
	namespaces.Store
	fails int
	mu    sync.Mutex
	names map[string]string // of the VMs, by NAMESPACE/ID; "runc": it is none
}

func (k *talker) List(context.Context) ([]string, error) {
	if k.fails--; k.fails >= 0 {
		return nil, errdefs.ErrUnavailable
	}
	return []string{"a"}, nil
}

func (k *talker) set(id, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if name == "" {
		delete(k.names, "a/"+id)
		return
	}
	k.names["a/"+id] = name
}

// listing is its list of containers.
type listing struct {
	containers.Store
	*talker
}

func (s listing) Get(ctx context.Context, id string) (containers.Container, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns, _ := namespaces.Namespace(ctx)
	name, found := s.names[ns+"/"+id]
	if !found {
		return containers.Container{}, errdefs.ErrNotFound
	}
	runtime := config.Default().Containerd.Runtime
	if name == "runc" {
		runtime = "io.containerd.runc.v2"
	}
	return containers.Container{ID: id, Labels: map[string]string{labelName: name},
		Runtime: containers.RuntimeInfo{Name: runtime}}, nil
}

func (s listing) List(ctx context.Context, _ ...string) (all []containers.Container, err error) {
	for _, id := range []string{"vm", "other"} {
		if obj, err := s.Get(ctx, id); err == nil {
			all = append(all, obj)
		}
	}
	return all, nil
}

// tasksOf is its service of tasks: VM exited has ended, VM runs runs, VM silent does not answer.
type tasksOf struct{ tasksapi.TasksClient }

func (tasksOf) Get(_ context.Context, req *tasksapi.GetRequest, _ ...grpc.CallOption) (*tasksapi.GetResponse, error) {
	switch req.GetContainerID() {
	case "exited":
		return &tasksapi.GetResponse{Process: &task.Process{Status: task.Status_STOPPED, ExitStatus: 9,
			ExitedAt: timestamppb.Now()}}, nil
	case "runs":
		return &tasksapi.GetResponse{Process: &task.Process{Status: task.Status_RUNNING}}, nil
	case "silent":
		return nil, errgrpc.ToGRPC(errdefs.ErrUnavailable)
	}
	return nil, errgrpc.ToGRPC(errdefs.ErrNotFound)
}

// What can still be seen of the time in which nothing was heard is told: ends and starts of VMs whose last event says
// something else. No answer tells nothing.
func TestTellWhatWasMissed(t *testing.T) {
	ctr, err := containerd.New("", containerd.WithServices(containerd.WithSandboxStore(new(shimSandboxes)),
		containerd.WithTaskClient(tasksOf{})))
	if err != nil {
		t.Fatal(err)
	}
	to := &heard{}
	l := &told{client: &Client{containerd: ctr}, to: to, vms: map[string]bool{"a/exited": true, "a/runs": true,
		"a/silent": true, "a/removed": true}}
	for _, was := range []string{"start exited", "exit exited", "start runs", "exit runs", "start silent", "exit silent",
		"start removed", "exit removed", "start gone"} {
		event, id, _ := strings.Cut(was, " ")
		to.seen = append(to.seen, &nodev1.NodeEvent{Event: event, Vm: &nodev1.VM{Namespace: "a", Id: id}})
	}
	l.missed(t.Context(), time.Now())
	want := []string{"gap 0", "exit exited 9", "start runs 0", "exit removed 0", "delete gone 0"}
	if !slices.Equal(to.all, want) {
		t.Errorf("told %q, want %q", to.all, want)
	}
}

// heard is a Listener.
type heard struct {
	all   []string
	names map[string]string
	seen  []*nodev1.NodeEvent
}

func (h *heard) Seen() []*nodev1.NodeEvent { return h.seen }

func (h *heard) Add(ev *nodev1.NodeEvent) {
	text := fmt.Sprint(ev.GetEvent(), " ", ev.GetVm().GetId(), " ", ev.GetProcess(), " ", ev.GetExitCode())
	if ev.GetEvent() == history.Kill {
		text += " " + ev.GetReason()
	}
	h.all = append(h.all, strings.Join(strings.Fields(text), " "))
}

func (h *heard) Named(vm *nodev1.VM, name string) (before string, known bool) {
	before, known = h.names[vm.GetId()]
	h.names[vm.GetId()] = name
	return before, known
}

// What containerd tells of VMs is told, and of other containers not: also of a VM that is gone when it is told of,
// and after containerd was away, which is said.
func TestTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &talker{fails: 1, names: map[string]string{"a/other": "runc"}}
		k.events, k.ends = make(chan *events.Envelope), make(chan error)
		ctr, err := containerd.New("", containerd.WithServices(containerd.WithSandboxStore(new(shimSandboxes)),
			containerd.WithContainerStore(listing{talker: k}),
			containerd.WithEventService(k), containerd.WithNamespaceService(k)))
		if err != nil {
			t.Fatal(err)
		}
		c, to := &Client{containerd: ctr, config: config.Default()}, &heard{names: map[string]string{}}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); c.Tell(ctx, to, time.Time{}) }()
		time.Sleep(resubscribe + time.Second) // the first list has failed
		tell := func(event any) {
			any, err := typeurl.MarshalAny(event)
			if err != nil {
				t.Fatal(err)
			}
			k.events <- &events.Envelope{Namespace: "a", Timestamp: time.Now(), Event: any}
			synctest.Wait()
		}
		k.set("vm", "web")
		tell(&eventsapi.ContainerCreate{ID: "vm"})
		tell(&eventsapi.ContainerUpdate{ID: "vm"}) // of something else
		k.set("vm", "shop")
		tell(&eventsapi.ContainerUpdate{ID: "vm"})
		tell(&eventsapi.TaskStart{ContainerID: "vm"})
		tell(&eventsapi.TaskStart{ContainerID: "other"})
		tell(&eventsapi.TaskExecStarted{ContainerID: "vm", ExecID: "e"})
		tell(&eventsapi.TaskExit{ContainerID: "vm", ID: "e", ExitStatus: 1})
		tell(&eventsapi.TaskOOM{ContainerID: "vm"})
		tell(&machinev1.TaskKilled{ContainerId: "vm", Signal: 15})
		tell(&machinev1.TaskKilled{ContainerId: "vm", ExecId: "e", Signal: 36})
		k.set("vm", "")
		tell(&eventsapi.TaskExit{ContainerID: "vm", ID: "vm", ExitStatus: 137})
		tell(&eventsapi.TaskIO{})
		tell(&eventsapi.ContainerDelete{ID: "vm"})
		tell(&eventsapi.ContainerDelete{ID: "other"})
		k.ends <- errors.New("containerd restarts")
		time.Sleep(resubscribe + time.Second)
		tell(&eventsapi.TaskStart{ContainerID: "unknown"})
		cancel()
		<-over
		want := []string{"gap 0", "create vm 0", "rename vm 0", "start vm 0", "exec-start vm e 0", "exec-exit vm e 1",
			"oom vm 0", "kill vm 0 SIGTERM", "kill vm e 0 signal 36", "exit vm 137", "delete vm 0", "gap 0"}
		if !slices.Equal(to.all, want) {
			t.Errorf("heard %q, want %q", to.all, want)
		}
	})
}
