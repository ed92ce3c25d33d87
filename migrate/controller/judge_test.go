package controller_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// asleep makes a VM that a snapshot owns, and that no node had last.
func (r *restored) asleep(id string) *nodev1.Record {
	r.t.Helper()
	rec := &nodev1.Record{Vm: &nodev1.VM{Namespace: "ns", Id: id}, Uid: id, Owner: &nodev1.Owner{Digest: "sha256:" + id},
		Generation: 7}
	if _, err := r.memory.Apply(r.t.Context(), rec.GetVm(), 0, transition.Change{Record: rec}); err != nil {
		r.t.Fatal(err)
	}
	return rec
}

func newer(rec *nodev1.Record) *nodev1.Held {
	h := held(rec, "OWN")
	h.Generation++
	return h
}

// One node's word, however often it is given, stops claims on the VMs that it names, and on its own:
// all others go on, and the operator is told of the node by name.
func TestOneNodesWord(t *testing.T) {
	for name, lie := range map[string]func(*restored) *nodev1.ReportRequest{
		"a VM of its own": func(r *restored) *nodev1.ReportRequest {
			return &nodev1.ReportRequest{Held: []*nodev1.Held{newer(r.boot(web, "b"))}}
		},
		"one that sleeps": func(r *restored) *nodev1.ReportRequest {
			return &nodev1.ReportRequest{Held: []*nodev1.Held{newer(r.asleep("web"))}}
		},
		"an incarnation": func(r *restored) *nodev1.ReportRequest {
			r.boot(web, "b")
			return &nodev1.ReportRequest{Incarnation: 1_700_000_000}
		},
		"more than there is room for": func(r *restored) *nodev1.ReportRequest {
			req := &nodev1.ReportRequest{}
			for n := range 100 {
				req.Held = append(req.Held, newer(r.boot(&nodev1.VM{Namespace: "ns", Id: fmt.Sprint("vm", n)}, "b")))
			}
			req.Held = append(req.Held, newer(r.boot(web, "b")))
			return req
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRestored(t)
			req := lie(r)
			req.Node = "b"
			for range 3 {
				s, err := r.whole.Report(r.as("b"), req)
				if err != nil || s.GetBehind() != nil || len(s.GetDoubts()) == 0 || len(s.GetDoubts()) > 17 ||
					s.GetDoubts()[0].GetNode() != "b" {
					t.Fatalf("%v, %v", s, err)
				}
			}
			r.boot(&nodev1.VM{Namespace: "ns", Id: "other"}, "a")
			r.refused(web, "b", "older than what node b holds", "godwit controller restore", "godwit controller retire b")
			if _, asked, err := r.whole.Told(t.Context(), "b"); err != nil || !asked {
				t.Errorf("b is asked whether it still says so: %v, %v", asked, err)
			}
			if _, err := r.whole.Retire(t.Context(), &nodev1.RetireRequest{Node: "b"}); err != nil {
				t.Fatal(err)
			}
			if _, err := r.whole.Report(r.as("b"), req); err != nil {
				t.Fatal(err)
			}
			rec := r.get(web)
			_, err := r.records.Own(r.as("b"), &nodev1.OwnRequest{Vm: web, Node: "b", Generation: rec.GetGeneration(),
				Uid: rec.GetUid()})
			if asleep := rec.GetOwner().GetDigest() != ""; asleep != errdefs.IsFailedPrecondition(err) || !asleep && err != nil {
				t.Errorf("after b was retired: %v", err)
			}
		})
	}
}

// A node that takes back what it said no more stands in the way.
func TestWordTakenBack(t *testing.T) {
	r := newRestored(t)
	onB := r.boot(web, "b")
	r.report("b", newer(onB))
	r.refused(web, "b")
	r.report("b", held(onB, "OWN"))
	r.boot(web, "b")
}

// What two nodes hold, or the controller's own, shows that the store went back: nothing changes any
// more. Two such words remain when a third node is retired, and one alone does not stop all.
func TestSignsOfSeveral(t *testing.T) {
	r := newRestored(t)
	other := &nodev1.VM{Namespace: "ns", Id: "other"}
	onA, onB := r.boot(web, "a"), r.boot(other, "b")
	r.report("a", newer(onA))
	s := r.report("b", newer(onB))
	if s.GetBehind() == nil {
		t.Fatalf("two nodes: %v", s)
	}
	r.refused(other, "b", "older than what node", "godwit controller restore")
	if _, err := r.records.Ensure(r.as("c"),
		&nodev1.EnsureRequest{Vm: &nodev1.VM{Namespace: "ns", Id: "new"}}); !errdefs.IsUnavailable(err) {
		t.Errorf("a new record: %v", err)
	}
	d := r.report("d", newer(r.get(other))) // of a VM that is another node's
	if d.GetBehind() == nil {
		t.Fatal(d)
	}
	if _, err := r.whole.Retire(t.Context(), &nodev1.RetireRequest{Node: "b"}); err != nil {
		t.Fatal(err)
	}
	r.boot(&nodev1.VM{Namespace: "ns", Id: "new"}, "b")
	r.refused(web, "a", "older than what node a holds")

	r = newRestored(t)
	r.boot(other, "b")
	s = r.report("c", newer(r.boot(web, "c")))
	if s.GetBehind() == nil {
		t.Fatalf("the controller's own node: %v", s)
	}
	r.refused(other, "b", "older than what node c holds")
}

// The VM went from a to b after the copy was made: b's word stops claims on that VM, and a is asked. As a has it no
// more, they stay stopped. With another such word the store is known to be old.
func TestPutBackAndTheOwnerIsAsked(t *testing.T) {
	r := newRestored(t)
	onA := r.boot(web, "a")
	copied := r.memory.Copy()
	onB := r.give(onA, "b")
	r.memory.PutBack(copied)
	other := &nodev1.VM{Namespace: "ns", Id: "other"}
	r.report("b", held(onB, "OWN"))
	r.refused(web, "a", "node b says of it", "It belongs to node a, which is asked", "godwit controller retire b")
	r.boot(other, "c")
	if _, asked, err := r.whole.Told(t.Context(), "a"); err != nil || !asked {
		t.Fatalf("a is asked: %v, %v", asked, err)
	}
	r.report("a")
	for range 2 {
		r.refused(web, "a", "older than what node b holds", "ns/web", "godwit controller restore")
		r.report("b", held(onB, "OWN")) // as often as it is asked
	}
	r.boot(other, "c")
	r.report("c", newer(r.get(other)))
	r.refused(web, "a", "older than what node")
	r.refused(other, "c", "older than what node", "godwit controller restore")
}

// The owner that stands still for an operation neither refutes nor confirms that another node has the VM since: no
// claim on it is admitted until a person decides.
func TestOwnerThatHasVoted(t *testing.T) {
	r := newRestored(t)
	onA := r.boot(web, "a")
	r.report("b", newer(onA))
	r.report("a", held(onA, "PREPARED"))
	r.refused(web, "a", "node b says of it")
	r.report("a", held(onA, "SENDING"))
	r.boot(web, "a")
}

// The store was put back unnoticed, and an old owner gives up the VM. That lifts the record to the generation of
// the real owner: two claims of one number are a sign as well. A claim of an owner that the record has had is none.
func TestEqualGenerationOfAnother(t *testing.T) {
	r := newRestored(t)
	onA := r.boot(web, "a")
	real := newer(onA) // a move's commit
	rec, err := r.records.Disown(r.as("a"), &nodev1.DisownRequest{Vm: web, Node: "a", Generation: onA.GetGeneration(),
		Uid: onA.GetUid()})
	if err != nil || rec.GetGeneration() != real.GetGeneration() {
		t.Fatalf("%v, %v", rec, err)
	}
	r.report("b", real)
	r.refused(web, "c", "older than what node b holds", "owner number 2")

	r = newRestored(t)
	next := r.boot(web, "a")
	for range 3 { // each owner's journal, as it may be read at any time until its next one
		was := next
		next = r.give(next, "b")
		for _, phase := range []string{"OWN", "SENDING", "PREPARED", "RELEASED", "INCOMING"} {
			if s := r.report(was.GetOwner().GetNode(), held(was, phase)); len(s.GetDoubts()) > 0 || s.GetBehind() != nil {
				t.Fatalf("%s: %v", phase, s)
			}
		}
		if s := r.report("b", held(next, "OWN")); len(s.GetDoubts()) > 0 || s.GetBehind() != nil {
			t.Fatal(s)
		}
	}
}

// A VM that stands still for an operation and of which there is no record waits, and no node makes it anew.
func TestVotedWithoutARecord(t *testing.T) {
	r := newRestored(t)
	s := r.report("b", &nodev1.Held{Vm: web, Uid: "u", Generation: 3, Phase: "PREPARED", Operation: "m"},
		&nodev1.Held{Vm: vmOf("runs"), Uid: "v", Generation: 3, Phase: "OWN"})
	if len(s.GetDoubts()) != 1 || s.GetBehind() != nil || !proto.Equal(s.GetDoubts()[0].GetVm(), web) {
		t.Fatal(s)
	}
	_, err := r.records.Ensure(r.as("a"), &nodev1.EnsureRequest{Vm: web})
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "no record") {
		t.Errorf("it is made anew: %v", err)
	}
	r.report("b")
	r.boot(web, "a")
}

// The operator is told by name, once, of a node by whose word a record does not change. So is a node that goes on
// saying what was refuted. A node that is asked and takes its word back is not told of.
func TestNodeIsNamed(t *testing.T) {
	r := newRestored(t)
	var told []string
	r.whole.Contradicts = func(node, reason string) { told = append(told, node+": "+reason) }
	onA := r.boot(web, "a")
	r.report("d", newer(onA))
	r.report("a", held(onA, "OWN"))
	r.report("d", newer(onA))
	if len(told) > 0 {
		t.Fatalf("after one word that was refuted: %q", told)
	}
	for range 9 {
		r.report("d", newer(onA))
		r.report("b", newer(r.boot(vmOf("other"), "b")))
		r.report("b")
	}
	if len(told) != 2 || !strings.HasPrefix(told[0], "b: it has VM default/other") ||
		!strings.HasPrefix(told[1], "d: it has VM ns/web") || !strings.Contains(told[1], "refuted") {
		t.Errorf("%q", told)
	}
}
