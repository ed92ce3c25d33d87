package moves

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/store"
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
type away struct{ *cluster.Board }

func (away) Drives(string) bool { return true }

func (away) Peer(node string) (nodev1.PeerService, error) {
	return nil, &engine.LinkError{Node: node, Err: errdefs.ErrUnavailable}
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	st := storetest.NewMemory()
	board, err := cluster.Open(t.Context(), st, false)
	if err != nil {
		t.Fatal(err)
	}
	records := controller.New(st)
	e := engine.New(engine.Parts{Records: records, Peers: away{board}, Events: engine.Sinks{}}, engine.Options{
		Node: "controller", Repository: func(*nodev1.Record) string { return "r" },
	})
	t.Cleanup(e.Close)
	f := &fleet{&Service{Records: records, Engine: e, Board: board}, t}
	for _, node := range []string{"a", "b", "c"} {
		if _, err := board.Announce(t.Context(), &nodev1.NodeInfo{Name: node}); err != nil {
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
// own, as it is for a single move (N-39).
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

// A drain that none of its moves could follow is refused before its node is cordoned, whoever
// asks, and names what is wrong with it (N-05, N-30).
func TestDrainThatCannotBe(t *testing.T) {
	st, err := store.Open(filepath.Join(t.TempDir(), "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	board, err := cluster.Open(t.Context(), st, false)
	if err != nil {
		t.Fatal(err)
	}
	records := controller.New(st)
	s := &Service{Records: records, Engine: orders{records}, Board: board}
	announce := func() {
		for _, node := range []string{"a", "b", "closed"} {
			if _, err := board.Announce(t.Context(), &nodev1.NodeInfo{Name: node}); err != nil {
				t.Fatal(err)
			}
		}
	}
	announce()
	if _, err := board.Cordon(t.Context(), "closed", false); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		req  *nodev1.DrainRequest
		is   func(error) bool
		says string
	}{
		"no such mode":   {&nodev1.DrainRequest{Node: "a", Mode: "warm"}, errdefs.IsInvalidArgument, `mode "warm"`},
		"to nobody":      {&nodev1.DrainRequest{Node: "a", To: "nobody"}, errdefs.IsNotFound, `"nobody"`},
		"to itself":      {&nodev1.DrainRequest{Node: "a", To: "a"}, errdefs.IsInvalidArgument, "name another"},
		"to a cordoned":  {&nodev1.DrainRequest{Node: "a", To: "closed"}, errdefs.IsFailedPrecondition, "godwit uncordon closed"},
		"of nobody":      {&nodev1.DrainRequest{Node: "nobody"}, errdefs.IsNotFound, `"nobody"`},
		"of nobody to b": {&nodev1.DrainRequest{Node: "nobody", To: "b"}, errdefs.IsNotFound, `"nobody"`},
	} {
		for who, ctx := range map[string]context.Context{"host": t.Context(), "node": controller.WithPeer(t.Context(), c.req.GetNode())} {
			announce() // however slow the test is
			if _, err := s.Drain(ctx, c.req); !c.is(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s by the %s: %v, want %q", name, who, err, c.says)
			}
		}
	}
	for _, n := range board.Nodes() {
		if n.GetCordoned() != (n.GetName() == "closed") {
			t.Errorf("behind refused drains: node %v", n)
		}
	}
	announce()
	if _, err := s.Drain(t.Context(), &nodev1.DrainRequest{Node: "a", To: "b", Mode: "cold"}); err != nil {
		t.Fatal(err)
	}
	if n, err := board.Node("a"); err != nil || !n.GetCordoned() {
		t.Errorf("behind a drain: node %v, %v", n, err)
	}
}

// So is one to a node that has not been heard lately.
func TestDrainToASilentNode(t *testing.T) {
	s := &Service{Board: silent{}}
	if _, err := s.Drain(t.Context(), &nodev1.DrainRequest{Node: "a", To: "b"}); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "not been heard") {
		t.Errorf("drained: %v", err)
	}
}

// silent knows one node, which is not up; a cordon would panic.
type silent struct{ Board }

func (silent) Nodes() []*nodev1.NodeInfo { return []*nodev1.NodeInfo{{Name: "b"}} }

func (silent) Node(name string) (*nodev1.NodeInfo, error) { return &nodev1.NodeInfo{Name: name}, nil }
