package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A node that is drained has no VM when the command says so: a move to it is called off, and a VM
// that wakes there is waited for and moved on.
func TestDrainOfWhatComes(t *testing.T) {
	f := newFleet(t)
	f.vm("nap", "a")
	f.sleeps("nap")
	open := func(id string, op *nodev1.Operation) *nodev1.AdvanceRequest {
		rec, err := f.records.Get(t.Context(), &nodev1.GetRequest{Vm: &nodev1.VM{Namespace: "default", Id: id}})
		if err == nil {
			op.Attempt, op.Generation = 1, rec.GetGeneration()
			_, err = f.records.Open(t.Context(), &nodev1.OpenRequest{Vm: rec.GetVm(), Operation: op})
		}
		if err != nil {
			t.Fatal(err)
		}
		return &nodev1.AdvanceRequest{Vm: rec.GetVm(), Operation: op.GetId(), Attempt: 1, Generation: op.GetGeneration(),
			Phase: nodev1.Phase_PHASE_TRANSFERRING}
	}
	f.says(0, "started", "migrate web --to b --detach --operation m")
	wake := open("nap", &nodev1.Operation{Id: "w", Kind: nodev1.Kind_KIND_WAKE, Destination: "b"})
	var out bytes.Buffer
	ended := make(chan int)
	go func() {
		ended <- Run(t.Context(), strings.Fields("-n default --socket "+f.socket+" drain b --mode live"), &out, &out)
	}()
	if op := f.settles("m"); op.GetPhase() != nodev1.Phase_PHASE_ABORTED ||
		!strings.Contains(op.GetReason(), "node b, where it went, is drained") {
		t.Errorf("a move to the node: %v", op)
	}
	select {
	case code := <-ended:
		t.Fatalf("a VM wakes on the node, and it ended with %d: %s", code, &out)
	case <-time.After(3 * moves.SettleInterval):
	}
	_, err := f.records.Advance(t.Context(), wake)
	if err == nil {
		_, err = f.records.Commit(t.Context(), &nodev1.CommitRequest{Vm: wake.GetVm(), Operation: "w", Attempt: 1,
			Generation: wake.GetGeneration(), Owner: &nodev1.Owner{Node: "b"}})
	}
	if err == nil {
		_, err = f.records.Finish(t.Context(), &nodev1.FinishRequest{Vm: wake.GetVm(), Operation: "w", Attempt: 1,
			Generation: wake.GetGeneration(), Phase: nodev1.Phase_PHASE_SUCCEEDED})
	}
	if err != nil {
		t.Fatal(err)
	}
	id := f.leaves("nap", "b")
	f.says(0, "abort", "abort "+id)
	if code := <-ended; code != 5 || !strings.Contains(out.String(), "drain node b: 1 of 1 VMs stay") {
		t.Errorf("what came does not move on: %d: %s", code, &out)
	}
	f.vm("last", "b")
	f.says(5, "2 of 2 VMs stay", "drain b --mode cold") // of two no move can be
	f.says(0, "default/last: migrate started", "drain b --detach")
	f.says(0, "", "drain roomy")
}

// sleeps hibernates a VM of node a, in the records.
func (f *fleet) sleeps(id string) {
	f.t.Helper()
	const digest = "sha256:aa"
	web := &nodev1.VM{Namespace: "default", Id: id}
	rec, err := f.records.Get(f.t.Context(), &nodev1.GetRequest{Vm: web})
	if err != nil {
		f.t.Fatal(err)
	}
	gen := rec.GetGeneration()
	_, err = f.records.Open(f.t.Context(), &nodev1.OpenRequest{Vm: web, Operation: &nodev1.Operation{
		Id: "h-" + id, Kind: nodev1.Kind_KIND_HIBERNATE, Attempt: 1, Generation: gen, Source: "a",
	}})
	if err == nil {
		_, err = f.records.Advance(f.t.Context(), &nodev1.AdvanceRequest{Vm: web, Operation: "h-" + id, Attempt: 1,
			Generation: gen, Phase: nodev1.Phase_PHASE_SWITCHING, Digest: digest})
	}
	if err == nil {
		receipt := record.Receipt{Operation: "h-" + id, Attempt: 1, Generation: gen, Digest: digest, Stopped: true}
		_, err = f.records.Commit(f.t.Context(), &nodev1.CommitRequest{Vm: web, Operation: "h-" + id, Attempt: 1,
			Generation: gen, Owner: &nodev1.Owner{Digest: digest}, Receipt: receipt.String()})
	}
	if err == nil {
		_, err = f.records.Advance(f.t.Context(), &nodev1.AdvanceRequest{Vm: web, Operation: "h-" + id, Attempt: 1,
			Generation: gen, Phase: nodev1.Phase_PHASE_CLEANING})
	}
	if err == nil {
		_, err = f.records.Finish(f.t.Context(), &nodev1.FinishRequest{Vm: web, Operation: "h-" + id, Attempt: 1,
			Generation: gen, Phase: nodev1.Phase_PHASE_SUCCEEDED})
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// leaves waits until a VM moves away from a node, and answers by which operation.
func (f *fleet) leaves(id, node string) string {
	f.t.Helper()
	for {
		rec, err := f.records.Get(f.t.Context(), &nodev1.GetRequest{Vm: &nodev1.VM{Namespace: "default", Id: id}})
		if err != nil {
			f.t.Fatal(err)
		}
		if op := rec.GetOperation(); op.GetSource() == node {
			return op.GetId()
		}
		select {
		case <-f.t.Context().Done():
			f.t.Fatal("it does not leave")
		case <-time.After(5 * time.Millisecond):
		}
	}
}
