package controller_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// disputed restores the store and has two nodes say that they have the VM, b under a newer number.
func (r *restored) disputed(rec *nodev1.Record) (onA, onB *nodev1.Held) {
	r.t.Helper()
	onA = newer(rec)
	onB = proto.CloneOf(onA)
	onB.Generation++
	r.restore()
	r.report("a", onA)
	r.report("b", onB)
	r.report("c")
	r.settle()
	if now := r.get(rec.GetVm()); !now.GetRivals() {
		r.t.Fatalf("two nodes have it: %v", now)
	}
	return onA, onB
}

// Two nodes have a VM, and a person does what the error asks for. Then the node that is right has the VM, whatever the
// copy says of it. It is not ended there, and no old snapshot of it wakes.
func TestTheNodeThatIsRightKeepsTheVM(t *testing.T) {
	for what, known := range map[string]func(r *restored) *nodev1.Record{
		"sleeps": func(r *restored) *nodev1.Record { return r.copied("slept") },
		"has no owner": func(r *restored) *nodev1.Record {
			rec := &nodev1.Record{Vm: vmOf("free"), Uid: "free", Generation: 5, Home: "a"}
			if _, err := r.memory.Apply(r.t.Context(), rec.GetVm(), 0, transition.Change{Record: rec}); err != nil {
				r.t.Fatal(err)
			}
			return rec
		},
		"node a owns it": func(r *restored) *nodev1.Record { return r.boot(vmOf("runs"), "a") },
		"not known":      func(*restored) *nodev1.Record { return &nodev1.Record{Vm: vmOf("new"), Uid: uidOfNew} },
	} {
		t.Run(what+", b is retired", func(t *testing.T) {
			r := newRestored(t)
			rec := known(r)
			onA, _ := r.disputed(rec)
			r.restore("b")
			r.report("a", onA)
			r.report("c")
			r.settle()
			r.owns("a", onA)
		})
		t.Run(what+", b has ended it", func(t *testing.T) {
			r := newRestored(t)
			rec := known(r)
			onA, onB := r.disputed(rec)
			for range 2 { // b says so once more
				r.restore()
				r.report("a", onA)
				r.report("b", onB)
				r.report("c")
				r.settle()
				if now := r.get(rec.GetVm()); !now.GetRivals() {
					t.Fatalf("two nodes have it: %v", now)
				}
			}
			r.restore()
			r.report("a", onA)
			r.report("b")
			r.report("c")
			r.settle()
			r.owns("a", onA)
		})
	}
}

// A third node says so too. Each order retires one more.
func TestTheNodeThatIsRightOfThreeKeepsTheVM(t *testing.T) {
	for _, known := range []bool{true, false} {
		r := newRestored(t)
		rec := &nodev1.Record{Vm: vmOf("new"), Uid: uidOfNew}
		if known {
			rec = r.copied("slept")
		}
		r.nodes = append(r.nodes, "d")
		onA := newer(rec)
		for retired := range 3 {
			r.restore([]string{"b", "d"}[:retired]...)
			r.report("a", onA)
			for n, node := range []string{"b", "d"} {
				lie := proto.CloneOf(onA)
				lie.Generation += uint64(2 - n)
				r.report(node, lie)
			}
			r.report("c")
			r.settle()
		}
		r.owns("a", onA)
	}
}

// A node that lies names another uid of a VM that the copy does not know. The word of the one that is right is not
// measured by it.
func TestTheUIDOfALieIsNoRecords(t *testing.T) {
	r := newRestored(t)
	onA := newer(&nodev1.Record{Vm: vmOf("new"), Uid: uidOfNew})
	onB := newer(&nodev1.Record{Vm: vmOf("new"), Uid: uuid.NewString(), Generation: 7})
	for _, retired := range [][]string{nil, {"b"}} {
		r.restore(retired...)
		r.report("a", onA)
		r.report("b", onB)
		r.report("c")
		r.settle()
	}
	r.owns("a", onA)
	if rec := r.get(vmOf("new")); rec.GetUid() != uidOfNew {
		t.Errorf("%v", rec)
	}
}

const uidOfNew = "4c6f0bd0-2f6e-4f0a-9a52-0d4f4a1b5a10"

// owns wants a node to own the VM under the number that it has reported.
func (r *restored) owns(node string, h *nodev1.Held) {
	r.t.Helper()
	if rec := r.get(h.GetVm()); rec.GetOwner().GetNode() != node || rec.GetGeneration() != h.GetGeneration() ||
		rec.GetRivals() || rec.GetConflict() != "" {
		r.t.Errorf("want owner %s under %d: %v", node, h.GetGeneration(), rec)
	}
}

// The controller alone gives some names. A VM of such a name that the copy knows is the node's that is right, though no
// node has had it in the copy.
func TestTheNodeThatIsRightKeepsASandbox(t *testing.T) {
	r := newRestored(t)
	r.whole.Reserved = func(vm *nodev1.VM) bool { return strings.HasPrefix(vm.GetId(), "sandbox") }
	rec, err := r.records.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vmOf("sandbox")})
	if err != nil {
		t.Fatal(err)
	}
	onA, _ := r.disputed(rec)
	r.restore("b")
	r.report("a", onA)
	r.report("c")
	r.settle()
	r.owns("a", onA)
}
