package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/pki"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// shims answer what the test says; calls that it does not expect panic.
type shims struct {
	Machines
	query *machinev1.QueryResponse
	gone  bool // what they have left is there
}

func (s *shims) Query(context.Context, *nodev1.VM) (*machinev1.QueryResponse, error) {
	if s.gone {
		return nil, errdefs.ErrUnavailable
	}
	if s.query == nil {
		return nil, errdefs.ErrNotFound
	}
	return s.query, nil
}

// nodes is a registry of one node.
type nodes struct{ address string }

func (n nodes) Node(name string) (*nodev1.NodeInfo, error) {
	return &nodev1.NodeInfo{Name: name, Address: n.address}, nil
}
func (nodes) Nodes() []*nodev1.NodeInfo { return nil }
func (nodes) Leads(string, string) bool { return true }

// cluster makes a controller's and a node's identity.
func cluster(t *testing.T) (first, node *pki.Identity) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.Init(dir, "first", []string{"127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	first, err := pki.Load(pki.In(dir))
	if err != nil {
		t.Fatal(err)
	}
	authority, err := pki.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	go func() { _ = controller.ServeTLS(t.Context(), srv, l, first, authority) }()
	token, err := authority.Token("n1", time.Minute, false)
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	if _, err := pki.Join(t.Context(), to, l.Addr().String(), token, nil); err != nil {
		t.Fatal(err)
	}
	if node, err = pki.Load(pki.In(to)); err != nil {
		t.Fatal(err)
	}
	return first, node
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// noTask is a containerd that knows nothing of the VM, and starts nothing.
type noTask struct{ engine.Tasks }

func (noTask) Running(context.Context, *nodev1.VM) (bool, error) { return false, nil }
func (noTask) Start(context.Context, *nodev1.VM) error           { return errdefs.ErrNotFound }

// A destination whose shim died after the commit has a successor: the VM runs as soon as that
// says so, and is waited for until then.
func TestSuccessorRunsAMovedVM(t *testing.T) {
	ref := &machinev1.Ref{Operation: "op", Attempt: 1}
	for state, runs := range map[string]bool{"starting": false, "running": true} {
		s := &Server{Node: "n1", Tasks: noTask{},
			Machines: &shims{query: &machinev1.QueryResponse{State: state, Record: "OWN", Adopted: true, Ref: ref}}}
		resp, err := s.Run(t.Context(), &nodev1.PeerRef{Vm: &nodev1.VM{Namespace: "default", Id: "web"}, Ref: ref})
		if resp.GetRunning() != runs || !runs && !errdefs.IsUnavailable(err) {
			t.Errorf("%s: %v, %v", state, resp, err)
		}
	}
}

// starts is a containerd whose Start says err.
type starts struct {
	engine.Tasks
	err   error
	asked int
}

func (s *starts) Start(context.Context, *nodev1.VM) error { return s.err }

func (s *starts) Running(context.Context, *nodev1.VM) (bool, error) { s.asked++; return false, nil }

// A destination starts its VM at once. It asks what became of the VM before only where it does
// not start. A fence is no loss. An end after the commit is one (R9). What was refused for now
// is the error of the start.
func TestRunStartsFirst(t *testing.T) {
	ref := &machinev1.Ref{Operation: "op", Attempt: 1}
	refused := fmt.Errorf("not yet: %w", errdefs.ErrFailedPrecondition)
	for name, c := range map[string]struct {
		start         error
		record, state string
		runs, fenced  bool
		class         func(error) bool
	}{
		"starts":  {record: "OWN", state: "running", runs: true},
		"fenced":  {start: refused, record: "FENCED", state: "stopped", fenced: true},
		"ended":   {start: refused, record: "OWN", state: "stopped", class: errdefs.IsDataLoss},
		"refused": {start: refused, record: "READY", state: "created", class: errdefs.IsFailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			tasks := &starts{err: c.start}
			s := &Server{Node: "n1", Tasks: tasks,
				Machines: &shims{query: &machinev1.QueryResponse{State: c.state, Record: c.record, Ref: ref}}}
			resp, err := s.Run(t.Context(), &nodev1.PeerRef{Vm: &nodev1.VM{Namespace: "default", Id: "web"}, Ref: ref})
			if resp.GetRunning() != c.runs || resp.GetFenced() != c.fenced || (err != nil) != (c.class != nil) ||
				c.class != nil && !c.class(err) {
				t.Errorf("%v, %v", resp, err)
			}
			if (tasks.asked > 0) != (c.start != nil) {
				t.Errorf("containerd was asked %d times what runs", tasks.asked)
			}
		})
	}
}

// Only the controller asks a node, and only the node that is meant answers. What it
// answers keeps its class; one that is not there is a LinkError.
func TestWhoTalksToWhom(t *testing.T) {
	first, node := cluster(t)
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	fake := &shims{}
	nodev1.RegisterPeerService(srv, &Server{Node: "n1", Machines: fake})
	l := listen(t)
	go func() { _ = controller.ServePeer(t.Context(), srv, l, node) }()
	reach := func(as *pki.Identity) *Peers {
		p := &Peers{Registry: nodes{l.Addr().String()}, Self: "first", TLS: func(name string) (*tls.Config, error) {
			return as.ClientOf(name), nil
		}}
		t.Cleanup(func() { _ = p.Close() })
		return p
	}
	ask := func(p *Peers, name string) (*nodev1.PeerState, error) {
		peer, err := p.Peer(name)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		return peer.Query(ctx, &nodev1.PeerRef{Vm: &nodev1.VM{Namespace: "default", Id: "web"}})
	}
	controllers := reach(first)
	if state, err := ask(controllers, "n1"); err != nil || state.GetKnown() {
		t.Fatalf("the controller: %v, %v", state, err)
	}
	fake.query = &machinev1.QueryResponse{State: "running"}
	if state, err := ask(controllers, "n1"); err != nil || state.GetMachine().GetState() != "running" {
		t.Errorf("the controller: %v, %v", state, err)
	}
	var link *engine.LinkError
	if _, err := ask(reach(first), "n2"); !errors.As(err, &link) || !strings.Contains(err.Error(), `"n1", not "n2"`) {
		t.Errorf("another node answers: %v", err)
	}
	if _, err := ask(reach(node), "n1"); !errors.As(err, &link) {
		t.Errorf("a node asks: %v", err)
	}
	_ = l.Close()
	if _, err := ask(reach(first), "n1"); !errors.As(err, &link) || !errdefs.IsUnavailable(err) {
		t.Errorf("no server is there: %v", err)
	}
}

// undone is a containerd that undoes whatever it is asked to.
type undone struct{ engine.Tasks }

func (undone) Undo(context.Context, *nodev1.VM, engine.Restore) error { return nil }

func (undone) Clear(context.Context, *nodev1.VM, engine.Restore) error { return nil }

// A destination that is undone leaves a fence, and no shim that answers for it: the move
// ends all the same, at once.
func TestDiscardLeavesAFence(t *testing.T) {
	s := &Server{Node: "n1", Tasks: undone{}, Machines: &shims{gone: true}}
	state, err := s.Discard(t.Context(), &nodev1.PeerRef{Vm: &nodev1.VM{Namespace: "default", Id: "web"},
		Ref: &machinev1.Ref{Operation: "m", Attempt: 1}})
	if err != nil || !state.GetKnown() {
		t.Errorf("%v, %v", state, err)
	}
}

// left is containerd and a record; what is done to the container is counted.
type left struct {
	nodev1.RecordsService
	rec      *nodev1.Record
	marked   int
	released int
}

func (l *left) Get(context.Context, *nodev1.GetRequest) (*nodev1.Record, error) { return l.rec, nil }
func (l *left) MarkDeparted(context.Context, *nodev1.VM, int64, string, string) error {
	l.marked++
	return nil
}
func (l *left) RemoveDeparted(context.Context, *nodev1.VM, string) error { return nil }
func (l *left) CleanDeparted(context.Context, *nodev1.VM, string, string) error {
	l.marked++
	return nil
}

type releasing struct {
	shims
	*left
}

func (r *releasing) Release(context.Context, *nodev1.VM, *machinev1.ReleaseRequest) error {
	r.released++
	return nil
}

// A Release that comes late finds the VM here again, or on its way: it marks no container,
// which nothing would start again then, and ends no task (R10).
func TestLateRelease(t *testing.T) {
	ref := &machinev1.Ref{Operation: "m", Attempt: 1, Generation: 3}
	for name, tt := range map[string]struct {
		query *machinev1.QueryResponse
		rec   *nodev1.Record
		late  bool
	}{
		"voted":        {&machinev1.QueryResponse{Record: "PREPARED", Ref: ref}, nil, false},
		"once more":    {&machinev1.QueryResponse{Record: "RELEASED", Ref: ref}, nil, false},
		"it runs here": {&machinev1.QueryResponse{Record: "OWN", Generation: 5}, nil, true},
		"it arrives": {&machinev1.QueryResponse{Record: "READY", Ref: &machinev1.Ref{Operation: "back", Attempt: 1}},
			nil, true},
		"next attempt": {&machinev1.QueryResponse{Record: "PREPARED", Ref: &machinev1.Ref{Operation: "m", Attempt: 2}},
			nil, true},
		"gone": {nil, &nodev1.Record{Owner: &nodev1.Owner{Node: "b"}}, false},
		"gone, comes": {nil, &nodev1.Record{Owner: &nodev1.Owner{Node: "b"},
			Operation: &nodev1.Operation{Destination: "a"}}, true},
		"gone, is back": {nil, &nodev1.Record{Owner: &nodev1.Owner{Node: "a"}}, true},
	} {
		l := &left{rec: tt.rec}
		s := &Server{Node: "a", Records: l, Departed: l, Machines: &releasing{shims{query: tt.query}, l}}
		_, err := s.Release(t.Context(), &nodev1.PeerReleaseRequest{Vm: &nodev1.VM{Namespace: "default", Id: "web"}, Ref: ref,
			Digest: "stream:1", Owner: "b"})
		if errdefs.IsFailedPrecondition(err) != tt.late || (l.marked == 0) != tt.late || (l.released == 0) != tt.late {
			t.Errorf("%s: %v, marked %d times, released %d", name, err, l.marked, l.released)
		}
	}
}
