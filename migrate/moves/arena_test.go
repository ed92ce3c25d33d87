package moves

import (
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/pki"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// arena is a controller on TCP, with a store in which a victim has VMs of each kind.
type arena struct {
	store   *store.Bolt
	members *cluster.State
	uids    map[string]string
	rogue   *ttrpc.Client // of a node with a valid certificate
	peer    *ttrpc.Client // the same one at the victim's peer port
	order   *ttrpc.Client // the controller there
	local   *ttrpc.Client // root on the controller's host, at godwitd's socket

	moves  *Service                      // of the controller
	seen   *record.Client                // the records as the rogue's engine sees them
	peers  map[string]nodev1.PeerService // nodes that the controller reaches
	policy controller.Policy
}

// newArena has VMs of node victim: run runs, busy is being put to sleep, moving is on its way to node
// third, sleeps sleeps, and owes has a pending deletion.
func newArena(t *testing.T, policy controller.Policy) *arena {
	t.Helper()
	a := &arena{uids: map[string]string{}, policy: policy}
	a.store, a.members = newCluster(t)
	records := controller.New(a.store).Under(policy)
	a.fill(t, records)
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.Init(dir, "first", []string{"127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	authority, err := pki.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	first := load(t, dir)
	a.moves = &Service{Self: "first", Records: records, Engine: orders{records}, Cluster: a.members, Pull: policy.Pull,
		Peer: func(node string) (nodev1.PeerService, error) {
			if p := a.peers[node]; p != nil {
				return p, nil
			}
			return nil, errdefs.ErrUnavailable
		}}
	port := serve(t, func(ctx context.Context, srv *ttrpc.Server, l net.Listener) error {
		nodev1.RegisterRecordsService(srv, records)
		nodev1.RegisterStoreService(srv, controller.NewIncarnations(a.store, a.store, "first", func() []string {
			return []string{"victim", "rogue", "third"}
		}, nil))
		nodev1.RegisterMovesService(srv, a.moves)
		nodev1.RegisterPodsService(srv, noPods{})
		return controller.ServeTLS(ctx, srv, l, first, authority)
	})
	join := func(node string) *pki.Identity {
		token, err := authority.Token(node, time.Minute, false)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), node)
		if _, err := pki.Join(t.Context(), dir, port, token, nil); err != nil {
			t.Fatal(err)
		}
		return load(t, dir)
	}
	victim, rogue := join("victim"), join("rogue")
	peer := serve(t, func(ctx context.Context, srv *ttrpc.Server, l net.Listener) error {
		nodev1.RegisterPeerService(srv, nil) // a call that is let through crashes it
		return controller.ServePeer(ctx, srv, l, victim)
	})
	a.rogue, a.peer, a.order = connect(t, port, rogue.Client()), connect(t, peer, rogue.ClientOf("victim")),
		connect(t, peer, first.ClientOf("victim"))
	a.seen = record.Remote([]string{port}, rogue.Client())
	t.Cleanup(func() { _ = a.seen.Close() })
	return a
}

func load(t *testing.T, dir string) *pki.Identity {
	t.Helper()
	id, err := pki.Load(pki.In(dir))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func serve(t *testing.T, do func(context.Context, *ttrpc.Server, net.Listener) error) (address string) {
	t.Helper()
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = do(ctx, srv, l) })
	t.Cleanup(func() { cancel(); _ = srv.Close(); wg.Wait() })
	return l.Addr().String()
}

func connect(t *testing.T, address string, config *tls.Config) *ttrpc.Client {
	t.Helper()
	conn, err := tls.Dial("tcp", address, config)
	if err != nil {
		t.Fatal(err)
	}
	c := ttrpc.NewClient(conn)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// fill makes the victim's VMs, by the victim's own calls.
func (a *arena) fill(t *testing.T, records *controller.Service) {
	t.Helper()
	mine := controller.WithPeer(t.Context(), "victim")
	must := func(rec *nodev1.Record, err error) *nodev1.Record {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	for _, node := range []string{"first", "victim", "rogue", "third"} {
		if _, err := a.members.Announce(t.Context(), &nodev1.NodeInfo{Name: node, Address: "127.0.0.1:1"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"run", "busy", "moving", "sleeps", "owes"} {
		must(records.Ensure(mine, &nodev1.EnsureRequest{Vm: named(id)}))
		rec := must(records.Own(mine, &nodev1.OwnRequest{Vm: named(id), Node: "victim"}))
		a.uids[id] = rec.GetUid()
		op := &nodev1.Operation{Id: "h-" + id, Kind: nodev1.Kind_KIND_HIBERNATE, Attempt: 1, Generation: 1, Source: "victim",
			Repository: "reg/vms/" + rec.GetUid(), Tag: "t"}
		switch id {
		case "run":
			continue
		case "moving":
			op = &nodev1.Operation{Id: "m", Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 1, Generation: 1, Source: "victim",
				Destination: "third"}
			must(records.Open(t.Context(), &nodev1.OpenRequest{Vm: named(id), Operation: op}))
			continue
		}
		must(records.Open(mine, &nodev1.OpenRequest{Vm: named(id), Operation: op}))
		ref := &nodev1.AdvanceRequest{Vm: named(id), Operation: op.GetId(), Attempt: 1, Generation: 1,
			Phase: nodev1.Phase_PHASE_SWITCHING, Digest: dig(id)}
		must(records.Advance(mine, ref))
		if id == "busy" {
			continue
		}
		receipt := record.Receipt{Operation: op.GetId(), Attempt: 1, Generation: 1, Digest: dig(id), Stopped: true}.String()
		must(records.Commit(mine, &nodev1.CommitRequest{Vm: named(id), Operation: op.GetId(), Attempt: 1, Generation: 1,
			Owner: &nodev1.Owner{Digest: dig(id)}, Receipt: receipt}))
		must(records.Advance(mine, &nodev1.AdvanceRequest{Vm: named(id), Operation: op.GetId(), Attempt: 1, Generation: 1,
			Phase: nodev1.Phase_PHASE_CLEANING}))
		must(records.Finish(mine, &nodev1.FinishRequest{Vm: named(id), Operation: op.GetId(), Attempt: 1, Generation: 1,
			Phase: nodev1.Phase_PHASE_SUCCEEDED}))
	}
	if _, err := records.Remove(mine, &nodev1.RemoveRequest{Vm: named("owes"), Force: true,
		DropSnapshots: true}); err != nil {
		t.Fatal(err)
	}
}

func dig(id string) string { return "sha256:" + strings.Repeat("0", 64-len(id)) + hexOf(id) }

// hexOf keeps what of a name is hexadecimal, and makes the rest a.
func hexOf(id string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("0123456789abcdef", r) {
			return r
		}
		return 'a'
	}, id)
}

// noPods stands in for the operator, which knows pods. What it answers is tested with an API server.
type noPods struct{}

func (noPods) Resolve(_ context.Context, req *nodev1.ResolveRequest) (*nodev1.ResolveResponse, error) {
	return &nodev1.ResolveResponse{}, transition.CheckVM(req.GetVm())
}

func (noPods) Login(context.Context, *nodev1.LoginRequest) (*nodev1.LoginResponse, error) {
	return &nodev1.LoginResponse{}, nil
}

func (noPods) Stopping(_ context.Context, req *nodev1.StoppingRequest) (*nodev1.StoppingResponse, error) {
	return &nodev1.StoppingResponse{}, transition.CheckVM(req.GetVm())
}
