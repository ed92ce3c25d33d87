package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// effects are the calls that change something, in their order.
func (w *world) effects() (all []string) {
	for _, call := range w.calls() {
		if !slices.Contains([]string{"Get", "Query", "Owed", "Running"}, call) {
			all = append(all, call)
		}
	}
	return all
}

// The order of an operation's steps, call by call. The operation is durable before anything happens, and a wake is
// durable before its task is made. What was captured is complete before the vote, and the vote comes before the
// commit. The source is released once it is durable that the operation has committed, or for a move that the VM
// runs elsewhere (R3). That pass deletes nothing. Calls after the last step do nothing.
func TestOrderOfSteps(t *testing.T) {
	want := map[string]string{
		"hibernate":  "Open Accepts Advance Capture Advance Vote Commit MarkDeparted Release Advance CleanDeparted Finish",
		"wake":       "Open Exists Advance Create Advance Start Advance Finish",
		"checkpoint": "Open Accepts Advance Capture Advance Commit Advance Finish",
		"cold move": "Open Advance Offer Accepts Check Advance Capture Advance Prepare Advance Vote Commit Run Advance " +
			"Release Finish",
		"live move": "Open Advance Offer Check Advance Offer Prepare Send Advance Vote Commit Run Advance Release Finish",
		"placed cold move": "Open MakePod Place Advance Offer Accepts Check Advance Capture Advance Prepare Advance Vote " +
			"Commit Run Advance PodReady Release EndPod Finish",
		"placed live move": "Open MakePod Place Advance Offer Check Advance Offer Prepare Send Advance Vote Commit Run " +
			"Advance PodReady Release EndPod Finish",
	}
	for _, o := range slices.Concat(orders, placedOrders[:2]) {
		w := o.start(t)
		e := w.start(o.node)
		if err := o.give(w, e, "op"); err != nil {
			t.Fatal(err)
		}
		op := w.settle("op")
		<-e.idle("op")
		if diff := cmp.Diff(want[o.name], strings.Join(w.effects(), " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", o.name, diff)
		}
		if err := e.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		status, err := e.Status(t.Context(), "op")
		if err != nil || op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED || !status.GetSettled() ||
			strings.Join(w.effects(), " ") != want[o.name] {
			t.Errorf("%s once more: %v, %v, calls %v", o.name, status, err, w.effects())
		}
	}
}

// An operation that cannot be written down has done nothing.
func TestNothingBeforeTheRecord(t *testing.T) {
	for _, o := range orders {
		w := o.start(t)
		w.broke("Open", errdefs.ErrUnavailable)
		if err := o.give(w, w.start(o.node), "op"); !errdefs.IsUnavailable(err) ||
			!slices.Equal(w.effects(), []string{"Open"}) {
			t.Errorf("%s: %v, calls %v", o.name, err, w.effects())
		}
	}
}

// A source that has not voted, or does not answer, keeps its VM: nothing is committed, and no
// destination runs; what is not captured is not voted for.
func TestGateOfTheVote(t *testing.T) {
	for name, class := range map[string]error{"Capture": errdefs.ErrUnavailable, "Send": errdefs.ErrUnavailable,
		"Prepare": errdefs.ErrInternal, "Vote": errdefs.ErrUnavailable} {
		for _, o := range orders {
			if o.name == "wake" {
				continue
			}
			w := o.start(t)
			w.broke(name, class)
			e := w.start(o.node)
			if err := o.give(w, e, "op"); err != nil {
				t.Fatal(err)
			}
			op := w.settle("op")
			if w.count(name) == 0 {
				continue // not a call of this one
			}
			voted := w.count("Vote") > 0
			if op.GetPhase() != nodev1.Phase_PHASE_FAILED || w.count("Commit")+w.count("Run")+w.count("Release") > 0 ||
				voted != (name == "Vote") {
				t.Errorf("%s without %s: %v, calls %v", o.name, name, op, w.calls())
			}
			w.check(o.name)
		}
	}
	w := liveWorld(t)
	e := w.start("c")
	w.hangs("Send", true)
	if err := w.moveLive(e, "m"); err != nil {
		t.Fatal(err)
	}
	w.called("Send", 1)
	w.silence("n1", true)
	if _, err := e.Cancel(t.Context(), "m", "it is silent"); err != nil {
		t.Fatal(err)
	}
	w.until("it is to be given back", func() bool {
		return w.record().GetOperation().GetPhase() == nodev1.Phase_PHASE_ABORTING
	})
	if w.stateAt("n2") == runs || w.record().GetOwner().GetNode() != "n1" {
		t.Errorf("a silent source is taken for dead: %v", w.record())
	}
}

// While its destination restores a VM and does not run it, all others wait. The snapshot that it restores from
// cannot be given up.
func TestWaitsForTheDestination(t *testing.T) {
	for _, o := range orders {
		last := map[string]string{"cold move": "Run", "live move": "Run", "wake": "Create"}[o.name]
		if last == "" {
			continue
		}
		w := o.start(t)
		e := w.start(o.node)
		w.broke(last, errdefs.ErrUnavailable)
		if err := o.give(w, e, "op"); err != nil {
			t.Fatal(err)
		}
		w.called(last, 1)
		before := len(w.effects())
		w.called(last, 5)
		if err := errors.Join(e.Sweep(t.Context()), w.start("n1").Sweep(t.Context())); err != nil {
			t.Fatal(err)
		}
		for _, call := range w.effects()[before:] {
			if call != last {
				t.Errorf("%s: %s while the destination restores", o.name, call)
			}
		}
		if digest := w.record().GetOperation().GetDigest(); o.name != "live move" {
			_, err := w.records.Trim(t.Context(), &nodev1.TrimRequest{Vm: vm, Digest: digest})
			if !errdefs.IsFailedPrecondition(err) || len(w.dropped) > 0 {
				t.Errorf("%s: its snapshot is given up: %v, dropped %v", o.name, err, w.dropped)
			}
		}
		w.broke(last, nil)
		if op := w.settle("op"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED {
			t.Errorf("%s: %v", o.name, op)
		}
		w.check(o.name)
	}
}

// Whatever operation is open, no other one, no Create, no removal and no round that repairs
// touches its VM or its record. Who orders a move hears which operation
// it is, of a wake too, from the record alone: a store that hangs or fails is
// not asked.
func TestOpenOperationIsLeftAlone(t *testing.T) {
	for _, o := range orders {
		stop := map[string]string{"hibernate": "Vote", "wake": "Start", "checkpoint": "Capture", "cold move": "Prepare",
			"live move": "Send"}[o.name]
		w := o.start(t)
		e := w.start(o.node)
		w.hangs(stop, true)
		if err := o.give(w, e, "op"); err != nil {
			t.Fatal(err)
		}
		w.called(stop, 1)
		for _, call := range []string{"Accepts", "Exists", "Drop", "Leftovers"} {
			w.broke(call, errdefs.ErrUnavailable)
		}
		before, asked := w.record(), len(w.effects())
		state := map[string]string{"n1": w.stateAt("n1"), "n2": w.stateAt("n2")}
		other, c := w.start("n3"), w.engine("c")
		t.Cleanup(c.Close)
		for name, err := range map[string]error{
			"move": w.moveTo(c, "another", "n3", "auto"), "wake": w.wake(other, "w"), "hibernate": w.hibernate(other, "h"),
			"checkpoint": w.checkpoint(other, "cp"),
		} {
			var held *record.HeldError
			if !errors.As(err, &held) || !strings.Contains(err.Error(), "operation op ") {
				t.Errorf("%s during a %s: %v", name, o.name, err)
			}
		}
		gen := before.GetGeneration()
		_, own := w.records.Own(t.Context(), &nodev1.OwnRequest{Vm: vm, Node: "n3", Generation: gen})
		_, disown := w.records.Disown(t.Context(), &nodev1.DisownRequest{Vm: vm, Node: "n1", Generation: gen})
		_, remove := w.records.Remove(t.Context(), &nodev1.RemoveRequest{Vm: vm, Force: true})
		_, create := record.Decide(before, "n3", record.Intent{})
		for name, err := range map[string]error{"own": own, "Disown": disown, "remove": remove, "create": create} {
			if !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%s during a %s: %v", name, o.name, err)
			}
		}
		for _, node := range []string{"n1", "n2"} {
			round := w.start(node)
			round.opts.Grace = 1
			for range 3 {
				_ = round.Reconcile(t.Context(), at(o.name != "wake" && node == "n1"))
				_ = round.Sweep(t.Context())
			}
		}
		if now := w.record(); now.GetVersion() != before.GetVersion() || w.stateAt("n1") != state["n1"] ||
			w.stateAt("n2") != state["n2"] {
			t.Errorf("%s: the record was %v and is %v; the VM was %v", o.name, before, now, state)
		}
		for _, call := range w.effects()[asked:] {
			if call != "Open" { // which refused
				t.Errorf("%s: %s while it is open", o.name, call)
			}
		}
		for _, call := range []string{"Accepts", "Exists", "Drop", "Leftovers"} {
			w.broke(call, nil)
		}
		w.hangs(stop, false)
		if _, err := e.Cancel(t.Context(), "op", "enough"); err != nil {
			t.Fatal(err)
		}
		w.settle("op")
		w.check(o.name)
	}
}
