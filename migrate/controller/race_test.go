package controller_test

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// serve runs a controller on a fresh store and answers its local socket.
func serve(t *testing.T) (socket string) {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return serveLocal(t, controller.New(st))
}

func serveLocal(t *testing.T, svc nodev1.RecordsService) (socket string) {
	t.Helper()
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	nodev1.RegisterRecordsService(srv, svc)
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = controller.ServeLocal(t.Context(), srv, l) })
	t.Cleanup(func() { _ = srv.Close(); _ = l.Close(); wg.Wait() })
	return socket
}

func dial(t *testing.T, socket string) *record.Client {
	t.Helper()
	c, err := record.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// asleep makes a VM whose owner is a digest and answers its record.
func asleep(t *testing.T, c nodev1.RecordsService, id, digest string) *nodev1.Record {
	t.Helper()
	vm := &nodev1.VM{Namespace: "default", Id: id}
	must := func(rec *nodev1.Record, err error) *nodev1.Record {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	ctx := t.Context()
	must(c.Ensure(ctx, &nodev1.EnsureRequest{Vm: vm}))
	rec := must(c.Own(ctx, &nodev1.OwnRequest{Vm: vm, Node: "src"}))
	op, g := "h-"+id, rec.GetGeneration()
	must(c.Open(ctx, &nodev1.OpenRequest{Vm: vm, Operation: &nodev1.Operation{Id: op, Kind: nodev1.Kind_KIND_HIBERNATE,
		Attempt: 1, Source: "src", Generation: g, Repository: "r/" + rec.GetUid(), Tag: "t"}}))
	must(c.Advance(ctx, &nodev1.AdvanceRequest{Vm: vm, Operation: op, Attempt: 1, Generation: g,
		Phase: nodev1.Phase_PHASE_SWITCHING, Digest: digest}))
	must(c.Commit(ctx, &nodev1.CommitRequest{Vm: vm, Operation: op, Attempt: 1, Generation: g,
		Owner:   &nodev1.Owner{Digest: digest},
		Receipt: record.Receipt{Operation: op, Attempt: 1, Generation: g, Digest: digest, Stopped: true}.String()}))
	must(c.Advance(ctx, &nodev1.AdvanceRequest{Vm: vm, Operation: op, Attempt: 1, Generation: g,
		Phase: nodev1.Phase_PHASE_CLEANING}))
	return must(c.Finish(ctx, &nodev1.FinishRequest{Vm: vm, Operation: op, Attempt: 1, Generation: g,
		Phase: nodev1.Phase_PHASE_SUCCEEDED}))
}

// wake is what an engine and its shim do to the record; run counts a VM that runs.
func wake(t *testing.T, c nodev1.RecordsService, seen *nodev1.Record, node string, run func()) error {
	ctx, vm, id := t.Context(), seen.Vm, "w-"+seen.Vm.Id+"-"+node
	rec, err := c.Open(ctx, &nodev1.OpenRequest{Vm: vm, Operation: &nodev1.Operation{Id: id, Kind: nodev1.Kind_KIND_WAKE,
		Attempt: 1, Destination: node, Generation: seen.Generation}})
	if err != nil {
		return err
	}
	g := rec.Generation
	if _, err := c.Advance(ctx, &nodev1.AdvanceRequest{Vm: vm, Operation: id, Attempt: 1, Generation: g,
		Phase: nodev1.Phase_PHASE_SWITCHING}); err != nil {
		return err
	}
	if _, err := c.Commit(ctx, &nodev1.CommitRequest{Vm: vm, Operation: id, Attempt: 1, Generation: g,
		Owner: &nodev1.Owner{Node: node}}); err != nil {
		return err
	}
	run()
	_, err = c.Finish(ctx, &nodev1.FinishRequest{Vm: vm, Operation: id, Attempt: 1, Generation: g,
		Phase: nodev1.Phase_PHASE_SUCCEEDED})
	return err
}

// TestWakeOnTwoNodesAtOnce shows I1: of two wakes of one VM exactly one runs it, and the
// other learns who did.
func TestWakeOnTwoNodesAtOnce(t *testing.T) {
	socket := serve(t)
	nodes := []string{"node-a", "node-b"}
	clients := []*record.Client{dial(t, socket), dial(t, socket)}
	for round := range 100 {
		seen := asleep(t, clients[0], fmt.Sprintf("vm%d", round), fmt.Sprintf("sha256:%064x", round))
		var runners atomic.Int32
		var winner atomic.Value
		errs := make([]error, len(nodes))
		begin := make(chan struct{})
		var wg sync.WaitGroup
		for i, node := range nodes {
			wg.Go(func() {
				<-begin
				errs[i] = wake(t, clients[i], seen, node, func() { runners.Add(1); winner.Store(node) })
			})
		}
		close(begin)
		wg.Wait()
		if n := runners.Load(); n != 1 {
			t.Fatalf("round %d: %d nodes ran the VM: %v", round, n, errs)
		}
		for i, node := range nodes {
			checkLoser(t, node, winner.Load().(string), errs[i])
		}
		rec, err := clients[0].Get(t.Context(), &nodev1.GetRequest{Vm: seen.Vm})
		if err != nil || rec.Owner.GetNode() != winner.Load() || rec.Generation != seen.Generation+1 || rec.Operation != nil {
			t.Fatalf("round %d: record %v (%v), winner %v", round, rec, err, winner.Load())
		}
	}
}

func checkLoser(t *testing.T, node, winner string, err error) {
	t.Helper()
	if node == winner {
		if err != nil {
			t.Fatalf("winner %s: %v", node, err)
		}
		return
	}
	var held *record.HeldError
	if !errors.As(err, &held) || !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("loser %s: error %v is no HeldError of class FailedPrecondition", node, err)
	}
	if held.Record.GetOwner().GetNode() != winner && held.Record.GetOperation().GetDestination() != winner {
		t.Fatalf("loser %s: error %v does not name %s", node, err, winner)
	}
}
