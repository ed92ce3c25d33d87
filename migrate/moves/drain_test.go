package moves

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// fleet is a controller, the real engine of moves, and nodes a, b and c, whose links are down: a
// move that has its place stays in its check.
type fleet struct {
	*Service
	t *testing.T
}

// away is the cluster as the engine asks it.
type away struct{ *cluster.State }

func (away) Drives(string) bool { return true }

func (away) Peer(node string) (nodev1.PeerService, error) {
	return nil, &engine.LinkError{Node: node, Err: errdefs.ErrUnavailable}
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	st := storetest.NewMemory()
	members, err := cluster.Open(t.Context(), st, false)
	if err != nil {
		t.Fatal(err)
	}
	records := controller.New(st)
	e := engine.New(engine.Parts{Records: records, Peers: away{members}, Events: engine.Sinks{}}, engine.Options{
		Node: "controller", Repository: func(*nodev1.Record) string { return "r" },
	})
	t.Cleanup(e.Close)
	f := &fleet{&Service{Records: records, Engine: e, Cluster: members}, t}
	for _, node := range []string{"a", "b", "c"} {
		if _, err := members.Announce(t.Context(), &nodev1.NodeInfo{Name: node}); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func named(id string) *nodev1.VM { return &nodev1.VM{Namespace: "default", Id: id} }

func (f *fleet) owns(node string, ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		_, err := f.Records.Ensure(f.t.Context(), &nodev1.EnsureRequest{Vm: named(id)})
		if err == nil {
			_, err = f.Records.Own(f.t.Context(), &nodev1.OwnRequest{Vm: named(id), Node: node})
		}
		if err != nil {
			f.t.Fatal(err)
		}
	}
}

// A node may order that it is drained: what the controller then does for it is the controller's
// own, as it is for a single move.
func TestDrainByTheNodeItself(t *testing.T) {
	for who, by := range map[string]func(context.Context) context.Context{
		"the host": controller.WithoutPeer,
		"node b":   func(ctx context.Context) context.Context { return controller.WithPeer(ctx, "b") },
	} {
		f := newFleet(t)
		f.owns("b", "one", "two")
		f.owns("a", "other")
		resp, err := f.Drain(by(t.Context()), &nodev1.DrainRequest{Node: "b", To: "c"})
		if err != nil || len(resp.GetMoves()) != 2 || len(resp.GetRefused()) > 0 {
			t.Errorf("by %s: %v, %v", who, resp, err)
		}
	}
}

// opens an operation of a VM, which is driven by no controller, and takes it to a phase.
func (f *fleet) opens(op *nodev1.Operation, phase nodev1.Phase, retarget string) {
	f.t.Helper()
	rec, err := f.Records.Get(f.t.Context(), &nodev1.GetRequest{Vm: named(op.GetId())})
	if err != nil {
		f.t.Fatal(err)
	}
	op.Attempt, op.Generation = 1, rec.GetGeneration()
	if _, err := f.Records.Open(f.t.Context(), &nodev1.OpenRequest{Vm: rec.GetVm(), Operation: op}); err != nil {
		f.t.Fatal(err)
	}
	advance := func(to nodev1.Phase, digest, retarget string) {
		f.t.Helper()
		_, err := f.Records.Advance(f.t.Context(), &nodev1.AdvanceRequest{
			Vm: rec.GetVm(), Operation: op.GetId(), Attempt: 1, Generation: op.GetGeneration(), Phase: to, Digest: digest,
			Retarget: retarget,
		})
		if err != nil {
			f.t.Fatal(err)
		}
	}
	switch {
	case phase == nodev1.Phase_PHASE_COMMITTED:
		digest, owner := "sha256:"+op.GetId(), &nodev1.Owner{Node: op.GetDestination()}
		if op.GetDestination() == "" {
			owner = &nodev1.Owner{Digest: digest}
		}
		advance(nodev1.Phase_PHASE_SWITCHING, digest, "")
		receipt := record.Receipt{Operation: op.GetId(), Attempt: 1, Generation: op.GetGeneration(), Digest: digest,
			Stopped: true}
		if _, err := f.Records.Commit(f.t.Context(), &nodev1.CommitRequest{
			Vm: rec.GetVm(), Operation: op.GetId(), Attempt: 1, Generation: op.GetGeneration(), Owner: owner,
			Receipt: receipt.String(),
		}); err != nil {
			f.t.Fatal(err)
		}
	case phase != nodev1.Phase_PHASE_PENDING:
		advance(phase, "", retarget)
	}
}

// What is on its way to a node that is drained does not arrive unseen: a move is called off before
// its commit; what is committed, wakes there, or is busy there is answered, to be followed. What
// the node has nothing to do with is not.
func TestDrainOfWhatComes(t *testing.T) {
	const pending, transferring, committed, aborting = nodev1.Phase_PHASE_PENDING, nodev1.Phase_PHASE_TRANSFERRING,
		nodev1.Phase_PHASE_COMMITTED, nodev1.Phase_PHASE_ABORTING
	const move, checkpoint = nodev1.Kind_KIND_MIGRATE, nodev1.Kind_KIND_CHECKPOINT
	f := newFleet(t)
	for _, c := range []struct {
		name     string
		kind     nodev1.Kind
		from, to string
		phase    nodev1.Phase
		retarget string
		off      bool // it is called off
		told     bool
	}{
		{"waits", move, "a", "b", pending, "", true, true},
		{"goes", move, "a", "b", transferring, "", true, true},
		{"turned", move, "a", "c", aborting, "b", true, true},
		{"there", move, "a", "b", committed, "", false, true},
		{"leaves", move, "b", "c", transferring, "", false, true},
		{"kept", checkpoint, "b", "", pending, "", false, true},
		{"undone", move, "a", "b", aborting, "", false, false},
		{"turned-away", move, "a", "b", aborting, "c", false, false},
		{"elsewhere", move, "a", "c", transferring, "", false, false},
		{"gone", move, "b", "c", committed, "", false, false},
	} {
		f.owns(c.from, c.name)
		f.opens(&nodev1.Operation{Id: c.name, Kind: c.kind, Source: c.from, Destination: c.to}, c.phase, c.retarget)
		resp, err := f.Drain(t.Context(), &nodev1.DrainRequest{Node: "b", To: "c"})
		if err != nil || len(resp.GetRefused()) > 0 {
			t.Fatalf("%s: %v, %v", c.name, resp, err)
		}
		told := slices.ContainsFunc(resp.GetMoves(), func(m *nodev1.StatusResponse) bool {
			return m.GetOperation().GetId() == c.name
		})
		known, err := f.Records.Operation(t.Context(), &nodev1.OperationRequest{Id: c.name})
		if op := known.GetOperation(); err != nil || told != c.told || op.GetCancelled() != c.off || c.off &&
			op.GetRetarget() != "" {
			t.Errorf("%s: told %v, %v, %v", c.name, told, op, err)
		}
	}
	f.owns("a", "sleeper")
	f.opens(&nodev1.Operation{Id: "sleeper", Kind: nodev1.Kind_KIND_HIBERNATE, Source: "a"}, committed, "")
	if _, err := f.Records.Open(t.Context(), &nodev1.OpenRequest{Vm: named("sleeper"), Operation: &nodev1.Operation{
		Id: "wake", Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Generation: 2, Destination: "b",
	}}); err != nil {
		t.Fatal(err)
	}
	resp, err := f.Drain(t.Context(), &nodev1.DrainRequest{Node: "b", To: "c"})
	if err != nil || !slices.ContainsFunc(resp.GetMoves(), func(m *nodev1.StatusResponse) bool {
		return m.GetOperation().GetId() == "wake" && m.GetOperation().GetPhase() == pending
	}) {
		t.Errorf("while one wakes there: %v, %v", resp, err)
	}
}

// A drain that none of its moves could follow is refused before its node is cordoned, for any caller. The refusal
// names what is wrong with it.
func TestDrainThatCannotBe(t *testing.T) {
	st, members := newCluster(t)
	records := controller.New(st)
	s := &Service{Records: records, Engine: orders{records}, Cluster: members}
	announce := func() {
		for _, node := range []string{"a", "b", "closed"} {
			if _, err := members.Announce(t.Context(), &nodev1.NodeInfo{Name: node}); err != nil {
				t.Fatal(err)
			}
		}
	}
	announce()
	if _, err := members.Cordon(t.Context(), "closed", false); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		req  *nodev1.DrainRequest
		is   func(error) bool
		says string
	}{
		"no such mode": {&nodev1.DrainRequest{Node: "a", Mode: "warm"}, errdefs.IsInvalidArgument, `mode "warm"`},
		"to nobody":    {&nodev1.DrainRequest{Node: "a", To: "nobody"}, errdefs.IsNotFound, `"nobody"`},
		"to itself":    {&nodev1.DrainRequest{Node: "a", To: "a"}, errdefs.IsInvalidArgument, "name another"},
		"to a cordoned": {&nodev1.DrainRequest{Node: "a", To: "closed"}, errdefs.IsFailedPrecondition,
			"godwit uncordon closed"},
		"of nobody":      {&nodev1.DrainRequest{Node: "nobody"}, errdefs.IsNotFound, `"nobody"`},
		"of nobody to b": {&nodev1.DrainRequest{Node: "nobody", To: "b"}, errdefs.IsNotFound, `"nobody"`},
	} {
		for who, ctx := range map[string]context.Context{"host": t.Context(), "node": controller.WithPeer(t.Context(),
			c.req.GetNode())} {
			announce() // however slow the test is
			if _, err := s.Drain(ctx, c.req); !c.is(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s by the %s: %v, want %q", name, who, err, c.says)
			}
		}
	}
	for _, n := range members.Nodes() {
		if n.GetCordoned() != (n.GetName() == "closed") {
			t.Errorf("behind refused drains: node %v", n)
		}
	}
	announce()
	if _, err := s.Drain(t.Context(), &nodev1.DrainRequest{Node: "a", To: "b", Mode: "cold"}); err != nil {
		t.Fatal(err)
	}
	if n, err := members.Node("a"); err != nil || !n.GetCordoned() {
		t.Errorf("behind a drain: node %v, %v", n, err)
	}
}

// So is one to a node that has not been heard lately.
func TestDrainToASilentNode(t *testing.T) {
	s := &Service{Cluster: silent{}}
	if _, err := s.Drain(t.Context(), &nodev1.DrainRequest{Node: "a", To: "b"}); !errdefs.IsUnavailable(err) ||
		!strings.Contains(err.Error(), "not been heard") {
		t.Errorf("drained: %v", err)
	}
}

// silent knows one node, which is not up; a cordon would panic.
type silent struct{ Cluster }

func (silent) Nodes() []*nodev1.NodeInfo { return []*nodev1.NodeInfo{{Name: "b"}} }

func (silent) Node(name string) (*nodev1.NodeInfo, error) { return &nodev1.NodeInfo{Name: name}, nil }
