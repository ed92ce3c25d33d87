package cli

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/ttrpc"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	service "godwit.dev/godwit/migrate/moves"
	"godwit.dev/godwit/migrate/node"
	"godwit.dev/godwit/migrate/store"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// fleet is a controller as godwitd has one, on a socket, with nodes that are not there: the source of
// a move says nothing until that is called off.
type fleet struct {
	t       *testing.T
	socket  string
	store   *store.Bolt
	records nodev1.RecordsService
	board   heard
	whole   *controller.Incarnations
	later   time.Duration // that its clock is ahead
	stop    func()        // what start has started
}

// heard is the board of nodes that were all heard lately, however slow the test is.
type heard struct{ *cluster.State }

func (h heard) Nodes() []*nodev1.NodeInfo {
	all := h.State.Nodes()
	for _, n := range all {
		n.Up = true
	}
	return all
}

func (h heard) Node(name string) (*nodev1.NodeInfo, error) {
	n, err := h.State.Node(name)
	if err == nil {
		n.Up = true
	}
	return n, err
}

func (heard) Drives(string) bool                      { return true }
func (heard) Peer(string) (nodev1.PeerService, error) { return mutes{}, nil }

// mutes is a node that has not answered yet.
type mutes struct{ nodev1.PeerService }

func (mutes) Offer(ctx context.Context, _ *nodev1.PeerRef) (*machinev1.OfferResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (mutes) Query(context.Context, *nodev1.PeerRef) (*nodev1.PeerState, error) {
	return &nodev1.PeerState{}, nil
}

func (mutes) Abort(context.Context, *nodev1.PeerAbortRequest) (*machinev1.AbortResponse, error) {
	return &machinev1.AbortResponse{}, nil
}

func (mutes) Discard(context.Context, *nodev1.PeerRef) (*nodev1.PeerState, error) {
	return &nodev1.PeerState{}, nil
}

// newFleet has nodes a, with VM web, b, roomy and closed, which is cordoned.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	dir, err := os.MkdirTemp("", "g") // the name of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f := &fleet{t: t, socket: filepath.Join(dir, "s"), store: st, records: controller.New(st)}
	f.start()
	t.Cleanup(func() { f.stop() })
	for i, name := range []string{"a", "b", "roomy", "closed"} {
		if _, err := f.board.Announce(t.Context(),
			&nodev1.NodeInfo{Name: name, FreeBytes: []uint64{9, 1, 2, 9}[i] << 30}); err != nil {
			t.Fatal(err)
		}
	}
	f.vm("web", "a")
	f.says(0, "node closed is cordoned", "cordon closed")
	return f
}

// start is the controller's daemon on the store as it is: it takes up what is open. stop ends it as
// a signal does.
func (f *fleet) start() {
	t := f.t
	t.Helper()
	board, err := cluster.Open(context.Background(), f.store, false)
	if err != nil {
		t.Fatal(err)
	}
	f.board = heard{board}
	journal := service.NewJournal(board.Append)
	e := engine.New(engine.Parts{Records: f.records, Peers: f.board, Events: journal}, engine.Options{
		Node: "controller", Repository: func(*nodev1.Record) string { return "" }, RetryMin: time.Millisecond,
	})
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	f.whole = controller.NewIncarnations(f.store, f.store, "controller", board.Names, f.now)
	nodev1.RegisterStoreService(srv, f.whole)
	nodev1.RegisterNodeService(srv, &node.Service{Config: config.Default(), Records: f.records, Shims: noShims{},
		Reachable: func(context.Context) error { return nil }})
	nodev1.RegisterMovesService(srv, &service.Service{Records: f.records, Engine: e, Cluster: f.board, Peer: f.board.Peer,
		Store: f.whole})
	ended := serve(t, srv, f.socket)
	f.stop = sync.OnceFunc(func() {
		ended()
		e.Close()
		_ = journal.Close()
	})
	if err := e.Resume(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func (f *fleet) now() time.Time { return time.Now().Add(f.later) }

func (f *fleet) vm(id, node string) {
	f.t.Helper()
	vm := &nodev1.VM{Namespace: "default", Id: id}
	_, err := f.records.Ensure(f.t.Context(), &nodev1.EnsureRequest{Vm: vm})
	if err == nil {
		_, err = f.records.Own(f.t.Context(), &nodev1.OwnRequest{Vm: vm, Node: node})
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// says runs the command, and wants its exit code, and words in what it prints.
func (f *fleet) says(code int, words, line string) {
	f.t.Helper()
	var out bytes.Buffer
	if got := Run(f.t.Context(), append([]string{"-n", "default", "--socket", f.socket}, strings.Fields(line)...), &out,
		&out); got != code || !strings.Contains(out.String(), words) {
		f.t.Errorf("godwit %s: exit code %d, want %d; %q, want %q", line, got, code, &out, words)
	}
}

func (f *fleet) operation(id string) *nodev1.Operation {
	f.t.Helper()
	resp, err := f.records.Operation(f.t.Context(), &nodev1.OperationRequest{Id: id})
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.GetOperation()
}

// settles waits for the end of a move.
func (f *fleet) settles(id string) *nodev1.Operation {
	f.t.Helper()
	for {
		if op := f.operation(id); op.GetClosedUnixNano() != 0 {
			return op
		}
		select {
		case <-f.t.Context().Done():
			f.t.Fatal("it does not end")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Every flag of migrate reaches the operation; without --to the node with the most room that takes
// VMs has it. It is called off by abort, which can be said again.
func TestMigrateAndAbort(t *testing.T) {
	f := newFleet(t)
	f.says(0, "default/web: migrate started, operation m1",
		"migrate web --detach --operation m1 --mode live --downtime 30ms --timeout 10m --bandwidth 20MiB --abort-on "+
			"downtime,stall --end-execs --stdio null://")
	op := f.operation("m1")
	if op.GetSource() != "a" || op.GetDestination() != "roomy" || op.GetMode() != "live" || op.GetDowntimeMs() != 30 ||
		op.GetTimeoutMs() != 600_000 ||
		op.GetBandwidth() != 20<<20 || !slices.Equal(op.GetAbortOn(), []string{"downtime", "stall"}) || !op.GetEndExecs() ||
		op.GetStdio() != "null://" {
		t.Errorf("ordered %v", op)
	}
	f.says(0, "started, operation m1", "migrate web --detach --operation m1")
	f.says(4, "m1", "migrate web --detach --to b")
	f.says(3, "Did you mean roomy? To see all nodes: godwit nodes.", "cordon rommy")
	f.says(0, "m1", "migrations")
	f.says(3, "nobody", "abort nobody")
	f.says(0, "operation m1: abort", "abort m1 --reason later")
	if op := f.settles("m1"); op.GetPhase() != nodev1.Phase_PHASE_ABORTED || op.GetReason() != "later" {
		t.Errorf("called off: %v", op)
	}
	f.says(0, "operation m1: aborted", "abort m1")
	f.says(0, `"phase": "aborted"`, "-o json abort m1")
	f.says(0, moves.Aborted, "watch m1")
	f.says(5, "later", "migrate web --operation m1")
	if rec, err := f.records.Get(t.Context(), &nodev1.GetRequest{Vm: op.GetVm()}); err != nil ||
		rec.GetOwner().GetNode() != "a" || rec.GetOperation() != nil {
		t.Errorf("record %v, %v", rec, err)
	}
}

// What cannot be a move is refused with its reason and remedy, and opens nothing.
func TestMigrateRefused(t *testing.T) {
	f := newFleet(t)
	f.says(3, "nothere", "migrate nothere")
	f.says(2, "it is on node a already", "migrate web --to a")
	f.says(3, "To see all nodes: godwit nodes.", "migrate web --to nowhere")
	f.says(4, "(godwit uncordon closed)", "migrate web --to closed")
	f.says(4, "registry.repository", "migrate web --to b --mode cold")
	f.says(3, "To see all nodes: godwit nodes.", "drain a --to nowhere")
	f.says(0, "node b is cordoned", "cordon b")
	f.says(0, "node roomy is cordoned", "cordon roomy")
	f.says(6, "no other node takes VMs. To see why: godwit nodes.", "migrate web")
	if n, err := f.board.Node("a"); err != nil || n.GetCordoned() {
		t.Errorf("node %v, %v", n, err)
	}
	if rec, err := f.records.Get(t.Context(),
		&nodev1.GetRequest{Vm: &nodev1.VM{Namespace: "default", Id: "web"}}); err != nil || rec.GetOperation() != nil ||
		rec.GetGeneration() != 1 {
		t.Errorf("record %v, %v", rec, err)
	}
}

// A move that is not committed when its --timeout is over is undone, and says so; the VM stays.
func TestMigrateTimeout(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.says(6, "The VM stays at node a as before", "migrate web --to b --timeout 5s --operation m1")
	if op := f.settles("m1"); op.GetPhase() != nodev1.Phase_PHASE_FAILED || op.GetTimeoutMs() != 5000 {
		t.Errorf("operation %v", op)
	}
}

// What is committed is not called off, but moved back.
func TestAbortTooLate(t *testing.T) {
	f := newFleet(t)
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	op := &nodev1.Operation{Id: "m1", Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 1, Generation: 1, Source: "a",
		Destination: "b"}
	digest := "stream:m1"
	_, err := f.records.Open(t.Context(), &nodev1.OpenRequest{Vm: vm, Operation: op})
	if err == nil {
		receipt := fmt.Sprintf(`{"operation":"m1","attempt":1,"generation":1,"digest":%q,"stopped":true}`, digest)
		_, err = f.records.Advance(t.Context(), &nodev1.AdvanceRequest{Vm: vm, Operation: "m1", Attempt: 1, Generation: 1,
			Phase: nodev1.Phase_PHASE_SWITCHING, Digest: digest, Receipt: receipt})
	}
	if err == nil {
		_, err = f.records.Commit(t.Context(), &nodev1.CommitRequest{Vm: vm, Operation: "m1", Attempt: 1, Generation: 1,
			Owner: &nodev1.Owner{Node: "b"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	f.says(4, "too late, it is PHASE_COMMITTED; move the VM back", "abort m1")
	if op := f.operation("m1"); op.GetPhase() != nodev1.Phase_PHASE_COMMITTED {
		t.Errorf("operation %v", op)
	}
	hibernate := &nodev1.Operation{Id: "h", Kind: nodev1.Kind_KIND_HIBERNATE, Attempt: 1, Generation: 1, Source: "a"}
	f.vm("other", "a")
	if _, err := f.records.Open(t.Context(), &nodev1.OpenRequest{Vm: &nodev1.VM{Namespace: "default", Id: "other"},
		Operation: hibernate}); err != nil {
		t.Fatal(err)
	}
	f.says(2, "it is a KIND_HIBERNATE", "abort h")
}

// serveLocal serves a node's own socket until the test ends.
func serveLocal(t *testing.T, srv *ttrpc.Server, socket string) {
	t.Helper()
	t.Cleanup(serve(t, srv, socket))
}

// serve is serveLocal until stop, as a signal ends a daemon.
func serve(t *testing.T, srv *ttrpc.Server, socket string) (stop func()) {
	t.Helper()
	_ = os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { served <- controller.ServeLocal(ctx, srv, l) }()
	return sync.OnceFunc(func() {
		cancel()
		_ = srv.Close()
		<-served
	})
}
