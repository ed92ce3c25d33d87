package moves

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// place is a node, and what it says of the VM that is to wake.
type place struct {
	nodev1.PeerService
	info   nodev1.NodeInfo
	says   *nodev1.PeerCheckResponse
	err    error                  // of Check
	none   error                  // of the way to it
	wakes  error                  // of Wake
	begins func(operation string) // in Wake
	hangs  bool                   // Check does not answer

	cordons bool // it is cordoned while it is asked

	checked atomic.Pointer[nodev1.PeerCheckRequest] // by one who may not be waited for
	woken   *nodev1.WakeRequest
}

func (p *place) Check(ctx context.Context, req *nodev1.PeerCheckRequest) (*nodev1.PeerCheckResponse, error) {
	if p.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	p.checked.Store(req)
	if p.cordons {
		p.info.Cordoned = true
	}
	return p.says, p.err
}

func (p *place) Wake(_ context.Context, req *nodev1.WakeRequest) (*nodev1.StatusResponse, error) {
	p.woken = req
	if p.begins != nil {
		p.begins(req.GetOperation())
	}
	return &nodev1.StatusResponse{Operation: &nodev1.Operation{Id: req.GetOperation()}}, p.wakes
}

// sleeper is a controller on node a, with a VM that sleeps, and nodes.
type sleeper struct {
	nodev1.RecordsService
	Engine
	Cluster
	rec    *nodev1.Record
	err    error // of the records
	known  *nodev1.Operation
	all    map[string]*place
	events []*nodev1.MoveEvent
	full   error // of the event's store
}

func (s *sleeper) Get(context.Context, *nodev1.GetRequest) (*nodev1.Record, error) {
	return s.rec, s.err
}

func (s *sleeper) Status(_ context.Context, id string) (*nodev1.StatusResponse, error) {
	if s.known.GetId() == id {
		return &nodev1.StatusResponse{Operation: s.known}, nil
	}
	return nil, errdefs.ErrNotFound
}

func (s *sleeper) Nodes() (all []*nodev1.NodeInfo) {
	for _, name := range []string{"a", "b", "c", "d"} {
		if p := s.all[name]; p != nil {
			all = append(all, proto.CloneOf(&p.info))
		}
	}
	return all
}

func (s *sleeper) Node(name string) (*nodev1.NodeInfo, error) {
	if p := s.all[name]; p != nil {
		return proto.CloneOf(&p.info), nil
	}
	return nil, errdefs.ErrNotFound
}

func (s *sleeper) Append(_ context.Context, ev *nodev1.MoveEvent) error {
	s.events = append(s.events, ev)
	return s.full
}

func (s *sleeper) Events(context.Context, uint64, time.Duration) []*nodev1.MoveEvent { return s.events }

func newSleeper() (*sleeper, *Service) {
	s := &sleeper{all: map[string]*place{}, rec: &nodev1.Record{
		Vm: &nodev1.VM{Namespace: "default", Id: "web"}, Uid: "u", Generation: 7, Owner: &nodev1.Owner{Digest: "sha256:new"},
		Repository: "r/new",
		Snapshots: []*nodev1.SnapshotRef{{Digest: "sha256:old", Repository: "r/old"},
			{Digest: "sha256:new", Repository: "r/new"}},
	}}
	for i, name := range []string{"a", "b", "c"} {
		s.all[name] = &place{says: &nodev1.PeerCheckResponse{FreeBytes: uint64(i+1) << 30}}
		s.all[name].info = nodev1.NodeInfo{Name: name, Up: true}
	}
	return s, &Service{Self: "a", Records: s, Engine: s, Cluster: s, Peer: func(node string) (nodev1.PeerService, error) {
		p := s.all[node]
		if p == nil {
			return nil, errdefs.ErrNotFound
		}
		return p, p.none
	}}
}

// tell has all nodes answer so.
func (s *sleeper) tell(err error) {
	for _, p := range s.all {
		p.err = err
	}
}

// woke is the nodes that were ordered to wake it.
func (s *sleeper) woke() (all string) {
	for _, n := range s.Nodes() {
		if s.all[n.GetName()].woken != nil {
			all += n.GetName()
		}
	}
	return all
}

// A wake goes to a node that it fits: one with a copy of the snapshot first, then where it was ordered, then where
// most room is. It never goes to a node that is cordoned, silent or out of reach.
func TestWakeChooses(t *testing.T) {
	full := &nodev1.PeerCheckResponse{Obstacles: []string{"it has 1MiB free"}, Copy: true}
	link := &engine.LinkError{Node: "b", Err: errdefs.ErrUnavailable}
	copied := func(s *sleeper, n string) { s.all[n].says.Copy = true }
	for name, tt := range map[string]struct {
		from string // another node than the controller's
		make func(*sleeper)
		want string
	}{
		"where it was ordered":            {"b", func(*sleeper) {}, "b"},
		"on the controller's":             {"", func(*sleeper) {}, "a"},
		"a copy elsewhere":                {"b", func(s *sleeper) { copied(s, "a") }, "a"},
		"copies here and there":           {"b", func(s *sleeper) { copied(s, "a"); copied(s, "b") }, "b"},
		"two copies elsewhere: more room": {"b", func(s *sleeper) { copied(s, "a"); copied(s, "c") }, "c"},
		"the copy is where no room is":    {"b", func(s *sleeper) { s.all["a"].says = full }, "b"},
		"no room there: the most room":    {"b", func(s *sleeper) { s.all["b"].says = full }, "c"},
		"the copy is cordoned":            {"b", func(s *sleeper) { copied(s, "a"); s.all["a"].info.Cordoned = true }, "b"},
		"the copy is silent":              {"b", func(s *sleeper) { copied(s, "a"); s.all["a"].info.Up = false }, "b"},
		"who orders lives":                {"b", func(s *sleeper) { s.all["b"].info.Up = false }, "b"},
		"no way to it":                    {"b", func(s *sleeper) { s.all["b"].none = errdefs.ErrFailedPrecondition }, "c"},
		"the link breaks":                 {"b", func(s *sleeper) { s.all["b"].err = link }, "c"},
		"it cannot tell":                  {"b", func(s *sleeper) { s.all["b"].err = errdefs.ErrUnavailable }, "c"},
		"the store is away from all": {"b", func(s *sleeper) {
			for _, p := range s.all {
				p.err = errdefs.ErrUnavailable
			}
		}, "b"},
		"damaged, and here is no way": {"b", func(s *sleeper) {
			for _, p := range s.all {
				p.err = errdefs.ErrDataLoss
			}
			s.all["b"].err = link
		}, "a"},
		"late, and lives": {"b", func(s *sleeper) { s.tell(context.DeadlineExceeded) }, "b"},
		"late, and here is no room": {"b", func(s *sleeper) {
			s.tell(context.DeadlineExceeded)
			s.all["b"].says, s.all["b"].err = full, nil
			s.all["a"].err = errdefs.ErrUnavailable
		}, "a"},
		"a node that never announced":      {"d", func(s *sleeper) { s.all["c"].says = full }, "b"},
		"the VM is owned: who waits, says": {"b", func(s *sleeper) { s.rec.Owner = &nodev1.Owner{Node: "c"} }, "b"},
		"an operation is open":             {"c", func(s *sleeper) { s.rec.Operation = &nodev1.Operation{Id: "h"} }, "c"},
		"it never slept":                   {"c", func(s *sleeper) { s.rec.Owner = nil }, "c"},
	} {
		t.Run(name, func(t *testing.T) {
			s, service := newSleeper()
			tt.make(s)
			ctx := t.Context()
			if tt.from != "" {
				ctx = controller.WithPeer(ctx, tt.from)
			}
			status, err := service.Wake(ctx, &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Vm: s.rec.GetVm(), Stdio: "null://"}})
			if err != nil || s.woke() != tt.want {
				t.Fatalf("woken on %q, want %q; %v", s.woke(), tt.want, err)
			}
			w, late := s.all[tt.want].woken, s.rec.GetOperation() == nil && s.rec.GetOwner().GetDigest() != ""
			if w.GetOperation() == "" || status.GetOperation().GetId() != w.GetOperation() || w.GetStdio() != "null://" ||
				late != (w.GetGeneration() == 7 && w.GetUid() == "u") {
				t.Errorf("ordered %v", w)
			}
			if c := s.all["c"].checked.Load(); c != nil && (c.GetDigest() != "sha256:new" || c.GetRepository() != "r/new" ||
				c.GetSource() != "") {
				t.Errorf("asked %v", c)
			}
			if len(s.events) != 0 {
				t.Errorf("told %v", s.events)
			}
		})
	}
}

// While it fits no node, the order is refused with each of them and why. WakeNoCapacity is told of, also where its
// store is away, and nothing was ordered.
func TestWakeFitsNoNode(t *testing.T) {
	for _, full := range []error{nil, errdefs.ErrUnavailable} {
		s, service := newSleeper()
		s.full = full
		s.all["a"].says.Obstacles = []string{"no room", "another CPU"}
		s.all["b"].info.Cordoned = true
		s.all["c"].err = &engine.LinkError{Node: "c", Err: errdefs.ErrUnavailable}
		_, err := service.Wake(t.Context(), &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Vm: s.rec.GetVm(), Operation: "w"}})
		if !errdefs.IsResourceExhausted(err) || s.woke() != "" {
			t.Fatalf("%v, woken on %q", err, s.woke())
		}
		if len(s.events) != 1 || s.events[0].GetType() != moves.NoCapacity || s.events[0].GetOperation() != "w" ||
			s.events[0].GetSource() != "a" || s.events[0].GetVm().GetId() != "web" {
			t.Fatalf("told %v", s.events)
		}
		for _, word := range []string{"node a: no room, another CPU", "godwit uncordon b", "node c does not answer"} {
			if !strings.Contains(err.Error(), word) || !strings.Contains(s.events[0].GetReason(), word) {
				t.Errorf("%q is not in %v, or not in %v", word, err, s.events)
			}
		}
	}
}

// A node that is named has it; if that node is cordoned or not allowed, the order is refused. A snapshot that is
// named and owns nothing goes to the part that refuses it. A snapshot that is named by force is what the nodes are
// asked about.
func TestWakeAsOrdered(t *testing.T) {
	remote := func(node string) func(context.Context) context.Context {
		return func(ctx context.Context) context.Context { return controller.WithPeer(ctx, node) }
	}
	local := func(ctx context.Context) context.Context { return ctx }
	for name, tt := range map[string]struct {
		as    func(context.Context) context.Context
		order *nodev1.WakeOrder
		make  func(*sleeper)
		want  string // node, and the snapshot that the others were asked about
		is    func(error) bool
	}{
		"named":            {local, &nodev1.WakeOrder{On: "c"}, nil, "c", nil},
		"named by itself":  {remote("c"), &nodev1.WakeOrder{On: "c"}, nil, "c", nil},
		"named by another": {remote("b"), &nodev1.WakeOrder{On: "c"}, nil, "", errdefs.IsPermissionDenied},
		"named by its own node": {remote("b"), &nodev1.WakeOrder{On: "c"}, func(s *sleeper) {
			s.rec.Home = "b"
		}, "c", nil},
		"named by its own, output": {remote("b"),
			&nodev1.WakeOrder{On: "c", Wake: &nodev1.WakeRequest{Stdio: "file:///etc/cron.d/x"}}, func(s *sleeper) {
				s.rec.Home = "b"
			}, "", errdefs.IsPermissionDenied},
		"named by another, repeated": {remote("b"), &nodev1.WakeOrder{On: "c", Wake: &nodev1.WakeRequest{Operation: "w"}},
			func(s *sleeper) {
				s.known = &nodev1.Operation{Id: "w", Kind: nodev1.Kind_KIND_WAKE, Vm: s.rec.GetVm()}
			}, "", nil},
		"named, cordoned": {local, &nodev1.WakeOrder{On: "c"}, func(s *sleeper) {
			s.all["c"].info.Cordoned = true
		}, "", errdefs.IsFailedPrecondition},
		"named, unknown": {local, &nodev1.WakeOrder{On: "x"}, nil, "", errdefs.IsNotFound},
		"another digest": {remote("b"), &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Digest: "sha256:old"}},
			nil, "b", nil},
		"by force": {remote("b"),
			&nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Digest: "sha256:old", Force: true}}, nil, "b r/old@sha256:old", nil},
		"by force, forgotten": {remote("b"),
			&nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Digest: "sha256:x", Force: true}}, nil, "b r/new@sha256:x", nil},
		"its node is lost": {local, &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{LostNode: "b"}}, nil, "",
			errdefs.IsInvalidArgument},
		"no record": {local, &nodev1.WakeOrder{}, func(s *sleeper) {
			s.err = errdefs.ErrNotFound
		}, "", errdefs.IsNotFound},
		"the node refuses": {local, &nodev1.WakeOrder{}, func(s *sleeper) {
			s.all["a"].wakes = &record.HeldError{Call: "wake", Record: s.rec}
		}, "a r/new@sha256:new", errdefs.IsFailedPrecondition},
		"an operation of that order": {local, &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Operation: "w"}}, func(s *sleeper) {
			s.known = &nodev1.Operation{Id: "w", Kind: nodev1.Kind_KIND_WAKE, Vm: s.rec.GetVm()}
		}, "", nil},
		"an operation of another": {local, &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Operation: "w"}}, func(s *sleeper) {
			s.known = &nodev1.Operation{Id: "w", Kind: nodev1.Kind_KIND_HIBERNATE, Vm: s.rec.GetVm()}
		}, "", errdefs.IsAlreadyExists},
	} {
		t.Run(name, func(t *testing.T) {
			s, service := newSleeper()
			if tt.make != nil {
				tt.make(s)
			}
			order := tt.order
			if order.Wake == nil {
				order.Wake = &nodev1.WakeRequest{}
			}
			order.Wake.Vm = s.rec.GetVm()
			_, err := service.Wake(tt.as(t.Context()), order)
			if tt.is == nil && err != nil || tt.is != nil && !tt.is(err) {
				t.Errorf("error %v", err)
			}
			got := s.woke()
			if c := s.all["c"].checked.Load(); c != nil {
				got += fmt.Sprintf(" %s@%s", c.GetRepository(), c.GetDigest())
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// An order whose answer was lost on the way is answered by the records; one that never arrived failed.
func TestWakeAnswerIsLost(t *testing.T) {
	for _, begun := range []bool{true, false} {
		s, service := newSleeper()
		s.all["a"].wakes = &engine.LinkError{Node: "a", Err: errdefs.ErrUnavailable}
		if begun {
			s.all["a"].begins = func(id string) {
				s.known = &nodev1.Operation{Id: id, Kind: nodev1.Kind_KIND_WAKE, Vm: s.rec.GetVm()}
			}
		}
		status, err := service.Wake(t.Context(),
			&nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Vm: s.rec.GetVm(), Operation: "w"}})
		if begun != (err == nil) || begun && status.GetOperation().GetId() != "w" || !begun && !errdefs.IsUnavailable(err) {
			t.Errorf("begun %t: %v, %v", begun, status, err)
		}
	}
}

// Who gave up waiting is told that, and no event says that it fits no node.
func TestWakeGivenUp(t *testing.T) {
	s, service := newSleeper()
	ctx, cancel := context.WithCancel(t.Context())
	for _, p := range s.all {
		p.err = context.Canceled
	}
	cancel()
	if _, err := service.Wake(ctx, &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Vm: s.rec.GetVm()}}); err == nil ||
		len(s.events) != 0 || s.woke() != "" {
		t.Errorf("%v, told %v, woken on %q", err, s.events, s.woke())
	}
}
