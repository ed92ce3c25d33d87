package tasks

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"strconv"
	"syscall"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/migrate/history"
)

// Listener takes what containerd tells of VMs.
type Listener interface {
	Add(ev *nodev1.NodeEvent)
	// Named says what a VM is called, and answers what it was called before.
	Named(vm *nodev1.VM, name string) (before string, known bool)
	// Seen are the last starts and ends of the VMs that are there, as far as they were told.
	Seen() []*nodev1.NodeEvent
}

// toldTopics choose the events that are told. Each exec has two more, and a pod may have ten probes a second: an event
// that comes for nothing costs this process as much as one that is told.
func toldTopics() (filters []string) {
	for _, topic := range []string{"/containers/create", "/containers/update", "/containers/delete", "/tasks/start",
		"/tasks/exit", "/tasks/oom", "/tasks/paused", "/tasks/resumed", "/tasks/exec-started", "/tasks/checkpointed",
		spec.KilledTopic} {
		filters = append(filters, "topic=="+strconv.Quote(topic))
	}
	return filters
}

// Tell tells of the VMs of this node what containerd tells of their containers and tasks, until ctx ends. containerd
// keeps nothing for who is not there: from, if it is not zero, is since when nothing was heard, and that is told too.
func (c *Client) Tell(ctx context.Context, to Listener, from time.Time) {
	l := &told{client: c, to: to, vms: map[string]bool{}}
	for ctx.Err() == nil {
		within, cancel := context.WithCancel(ctx)
		envelopes, failed := c.containerd.EventService().Subscribe(within, toldTopics()...)
		err := l.known(ctx)
		if err == nil {
			l.missed(ctx, from)
			err = l.hear(ctx, envelopes, failed)
			from = time.Now()
		}
		cancel()
		slog.DebugContext(ctx, "containerd tells no events", "error", err)
		if from.IsZero() {
			from = time.Now()
		}
		select {
		case <-time.After(resubscribe):
		case <-ctx.Done():
		}
	}
}

// told knows which containers are VMs.
type told struct {
	client *Client
	to     Listener
	vms    map[string]bool // by NAMESPACE/ID
}

// missed says since when nothing was heard, and tells the ends and starts of meanwhile that can still be seen.
func (t *told) missed(ctx context.Context, from time.Time) {
	if from.IsZero() {
		return
	}
	t.to.Add(&nodev1.NodeEvent{Type: history.TypeNode, Event: history.Gap,
		Reason: "what containerd told of VMs since " + from.UTC().Format(time.RFC3339) + " was not heard"})
	for _, was := range t.to.Seen() {
		if ev := t.since(ctx, was); ev != nil {
			ev.Type, ev.Vm = history.TypeVM, was.GetVm()
			ev.Reason = history.Late
			t.to.Add(ev)
		}
	}
}

// since is what has become of a VM since an event; nil: nothing, or it is not known.
func (t *told) since(ctx context.Context, was *nodev1.NodeEvent) *nodev1.NodeEvent {
	vm, ran := was.GetVm(), was.GetEvent() == history.Start
	if _, found := t.vms[vm.GetNamespace()+"/"+vm.GetId()]; !found {
		return &nodev1.NodeEvent{Event: history.Delete}
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, vm.GetNamespace()), lookBound)
	defer cancel()
	resp, err := t.client.containerd.TaskService().Get(ctx, &tasksapi.GetRequest{ContainerID: vm.GetId()})
	err = errgrpc.ToNative(err)
	switch p := resp.GetProcess(); {
	case errdefs.IsNotFound(err) && ran:
		return &nodev1.NodeEvent{Event: history.Exit}
	case err != nil:
		return nil
	case p.GetStatus() == task.Status_STOPPED && ran:
		code := p.GetExitStatus()
		return &nodev1.NodeEvent{Event: history.Exit, ExitCode: &code, UnixNano: p.GetExitedAt().AsTime().UnixNano()}
	case p.GetStatus() == task.Status_RUNNING && !ran:
		return &nodev1.NodeEvent{Event: history.Start}
	}
	return nil
}

// known lists the containers that are there already.
func (t *told) known(ctx context.Context) error {
	spaces, err := t.client.containerd.NamespaceService().List(ctx)
	if err != nil {
		return err
	}
	t.vms = map[string]bool{}
	for _, space := range spaces {
		list, err := t.client.containerd.ContainerService().List(namespaces.WithNamespace(ctx, space))
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		for _, obj := range list {
			t.see(&nodev1.VM{Namespace: space, Id: obj.ID}, obj)
		}
	}
	return nil
}

// see notes what a container is, and reports whether it was called something else before.
func (t *told) see(vm *nodev1.VM, obj containers.Container) (renamed bool) {
	own := t.client.own(obj.Runtime.Name) && !record.IsMember(obj.Labels)
	if t.vms[vm.GetNamespace()+"/"+vm.GetId()] = own; !own {
		return false
	}
	before, known := t.to.Named(vm, obj.Labels[labelName])
	return known && before != obj.Labels[labelName]
}

// own reports whether a runtime is godwit's, as client.Client has it.
func (c *Client) own(runtime string) bool {
	return runtime == c.config.Containerd.Runtime || runtime == config.Default().Containerd.Runtime ||
		path.Base(runtime) == "containerd-shim-godwit-v1"
}

func (t *told) hear(ctx context.Context, envelopes <-chan *events.Envelope, failed <-chan error) error {
	for {
		select {
		case e := <-envelopes:
			if e != nil {
				t.envelope(ctx, e)
			}
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lookBound bounds the question what a container is.
const lookBound = 5 * time.Second

func (t *told) envelope(ctx context.Context, e *events.Envelope) {
	any, err := typeurl.UnmarshalAny(e.Event)
	if err != nil {
		return
	}
	vm := &nodev1.VM{Namespace: e.Namespace}
	ev := &nodev1.NodeEvent{Type: history.TypeVM, UnixNano: e.Timestamp.UnixNano(), Vm: vm}
	switch any := any.(type) {
	case *eventsapi.ContainerCreate:
		vm.Id, ev.Event, ev.Reason = any.GetID(), history.Create, any.GetImage()
	case *eventsapi.ContainerUpdate:
		vm.Id, ev.Event = any.GetID(), history.Rename
	case *eventsapi.ContainerDelete:
		vm.Id, ev.Event = any.GetID(), history.Delete
	default:
		if !ofTask(any, ev) {
			return
		}
	}
	own, renamed := t.look(ctx, vm, ev.GetEvent())
	if ev.GetEvent() == history.Delete {
		delete(t.vms, vm.GetNamespace()+"/"+vm.GetId())
	}
	if !own || ev.GetEvent() == history.Rename && !renamed {
		return
	}
	t.to.Add(ev)
}

// ofTask fills ev from an event of a task. It reports whether that is one to be told.
func ofTask(any any, ev *nodev1.NodeEvent) bool {
	switch any := any.(type) {
	case *eventsapi.TaskStart:
		ev.Vm.Id, ev.Event = any.GetContainerID(), history.Start
	case *eventsapi.TaskExit:
		code := any.GetExitStatus()
		ev.Vm.Id, ev.Event, ev.ExitCode = any.GetContainerID(), history.Exit, &code
		if any.GetID() != any.GetContainerID() {
			ev.Event, ev.Process = "exec-exit", any.GetID()
		}
	case *eventsapi.TaskOOM:
		ev.Vm.Id, ev.Event = any.GetContainerID(), "oom"
	case *eventsapi.TaskPaused:
		ev.Vm.Id, ev.Event = any.GetContainerID(), "pause"
	case *eventsapi.TaskResumed:
		ev.Vm.Id, ev.Event = any.GetContainerID(), "resume"
	case *eventsapi.TaskExecStarted:
		ev.Vm.Id, ev.Event, ev.Process = any.GetContainerID(), "exec-start", any.GetExecID()
	case *machinev1.TaskKilled:
		ev.Vm.Id, ev.Event, ev.Process = any.GetContainerId(), history.Kill, any.GetExecId()
		ev.Reason = unix.SignalName(syscall.Signal(any.GetSignal()))
		if ev.GetReason() == "" { // of real time
			ev.Reason = fmt.Sprint("signal ", any.GetSignal())
		}
	case *eventsapi.TaskCheckpointed:
		ev.Vm.Id, ev.Event, ev.Digest = any.GetContainerID(), "checkpoint", any.GetCheckpoint()
	default:
		return false
	}
	return true
}

// look says whether a container is a VM, and whether it is called something else than before. One that is gone
// before it was looked at was no VM that anybody could use.
func (t *told) look(ctx context.Context, vm *nodev1.VM, event string) (own, renamed bool) {
	own, known := t.vms[vm.GetNamespace()+"/"+vm.GetId()]
	if known && event != history.Create && event != history.Rename {
		return own, false
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, vm.GetNamespace()), lookBound)
	defer cancel()
	obj, err := t.client.containerd.ContainerService().Get(ctx, vm.GetId())
	if err != nil {
		if !errdefs.IsNotFound(err) { // the next event of it looks again
			delete(t.vms, vm.GetNamespace()+"/"+vm.GetId())
			t.to.Add(&nodev1.NodeEvent{Type: history.TypeNode, Event: history.Gap,
				Reason: "containerd did not say what the container " + vm.GetId() + " is: " + err.Error()})
		}
		return own, false
	}
	renamed = t.see(vm, obj)
	return t.vms[vm.GetNamespace()+"/"+vm.GetId()], renamed
}
