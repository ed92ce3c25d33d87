//go:build integration

package ctr

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	_ "github.com/containerd/containerd/api/events" // the types of what shims tell
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/integration/harness"
)

// shim is a task's shim on its own socket, without containerd in between.
type shim struct {
	taskapi.TTRPCTaskService
	machine machinev1.MachineService
	node    *harness.Node
	vm      string
	ctx     context.Context
}

func dialShim(t *testing.T, n *harness.Node, vm string) *shim {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(n.Dir, "state", "io.containerd.runtime.v2.task", "default", vm,
		"bootstrap.json"))
	if err != nil {
		t.Fatal(err)
	}
	var served struct{ Address string }
	if err := json.Unmarshal(data, &served); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", strings.TrimPrefix(served.Address, "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	t.Cleanup(func() { client.Close() })
	return &shim{
		taskapi.NewTTRPCTaskClient(client), machinev1.NewMachineClient(client), n, vm,
		namespaces.WithNamespace(t.Context(), "default"),
	}
}

// signalVMM sends a signal to the VM's VMM.
func (s *shim) signalVMM(t *testing.T, signal string) {
	t.Helper()
	q, err := s.machine.Query(s.ctx, &machinev1.QueryRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.node.Run(t.Context(), "kill", "-"+signal, strconv.Itoa(int(q.GetVmmPid()))); err != nil {
		t.Fatal(err)
	}
}

// exec makes and starts a shell script without stdio.
func (s *shim) exec(t *testing.T, id, script string) {
	t.Helper()
	spec := &specs.Process{Args: []string{"sh", "-c", script}, Cwd: "/", Env: []string{"PATH=/bin:/usr/bin"}}
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Exec(s.ctx, &taskapi.ExecProcessRequest{ID: s.vm, ExecID: id,
		Spec: &anypb.Any{Value: data}}); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Start(s.ctx, &taskapi.StartRequest{ID: s.vm, ExecID: id}); err != nil || r.GetPid() == 0 {
		t.Fatalf("start exec %s: %v, %v", id, r, err)
	}
}

func (s *shim) kill(exec string, signal uint32, all bool) error {
	_, err := s.Kill(s.ctx, &taskapi.KillRequest{ID: s.vm, ExecID: exec, Signal: signal, All: all})
	return err
}

// ended waits for a process and answers its exit status.
func (s *shim) ended(t *testing.T, exec string) uint32 {
	t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, stepTimeout)
	defer cancel()
	r, err := s.Wait(ctx, &taskapi.WaitRequest{ID: s.vm, ExecID: exec})
	if err != nil {
		t.Fatalf("wait for %q: %v", exec, err)
	}
	return r.GetExitStatus()
}

func (s *shim) forget(t *testing.T, exec string) {
	t.Helper()
	if _, err := s.Delete(s.ctx, &taskapi.DeleteRequest{ID: s.vm, ExecID: exec}); err != nil {
		t.Fatalf("delete %q: %v", exec, err)
	}
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// listener takes the events of shims in containerd's place, while it is down.
type listener struct {
	mu     sync.Mutex
	events []event
}

func listen(t *testing.T, n *harness.Node) (l *listener, stop func()) {
	t.Helper()
	path := n.Socket + ".ttrpc"
	_ = os.Remove(path) // the dead one's
	socket, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	l = &listener{}
	eventsapi.RegisterTTRPCEventsService(server, l)
	go func() { _ = server.Serve(context.WithoutCancel(t.Context()), socket) }()
	return l, func() { _ = server.Close() }
}

func (l *listener) Forward(_ context.Context, r *eventsapi.ForwardRequest) (*emptypb.Empty, error) {
	message, err := typeurl.UnmarshalAny(r.GetEnvelope().GetEvent())
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	e := event{topic: r.GetEnvelope().GetTopic()}
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
	return &emptypb.Empty{}, nil
}

// of a VM: topic, process and status, in their order.
func (l *listener) of(vm string) (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if e.ID == vm {
			all = append(all, strings.Join([]string{e.topic, e.process(), strconv.Itoa(int(e.Status))}, " "))
		}
	}
	return slices.Clip(all)
}
