package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// restored is a controller on node c whose store may be put back, and nodes a and b.
type restored struct {
	t       *testing.T
	memory  *storetest.Memory
	records *controller.Service
	whole   *controller.Incarnations
	nodes   []string
	clock   time.Time
}

func newRestored(t *testing.T) *restored {
	r := &restored{t: t, memory: storetest.NewMemory(), nodes: []string{"a", "b", "c"}, clock: time.Unix(1_800_000_000, 0)}
	r.records = controller.New(r.memory)
	r.whole = controller.NewIncarnations(r.memory, r.memory, "c", func() []string { return r.nodes }, r.now)
	return r
}

func (r *restored) now() time.Time { return r.clock }

var web = &nodev1.VM{Namespace: "ns", Id: "web"}

func (r *restored) as(node string) context.Context { return controller.WithPeer(r.t.Context(), node) }

// boot has a node claim the VM for a fresh boot; it answers the record.
func (r *restored) boot(vm *nodev1.VM, node string) *nodev1.Record {
	r.t.Helper()
	rec, err := r.records.Ensure(r.as(node), &nodev1.EnsureRequest{Vm: vm})
	if err == nil {
		rec, err = r.records.Own(r.as(node), &nodev1.OwnRequest{Vm: vm, Node: node, Generation: rec.GetGeneration(),
			Uid: rec.GetUid()})
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return rec
}

// give moves the VM from its owner to a node: the owner gives it up, the node claims it.
func (r *restored) give(rec *nodev1.Record, node string) *nodev1.Record {
	r.t.Helper()
	_, err := r.records.Disown(r.as(rec.GetOwner().GetNode()), &nodev1.DisownRequest{Vm: rec.GetVm(),
		Node: rec.GetOwner().GetNode(), Generation: rec.GetGeneration(), Uid: rec.GetUid()})
	if err != nil {
		r.t.Fatal(err)
	}
	return r.boot(rec.GetVm(), node)
}

func (r *restored) get(vm *nodev1.VM) *nodev1.Record {
	r.t.Helper()
	rec, err := r.records.Get(r.t.Context(), &nodev1.GetRequest{Vm: vm})
	if err != nil {
		r.t.Fatal(err)
	}
	return rec
}

func held(rec *nodev1.Record, phase string) *nodev1.Held {
	return &nodev1.Held{Vm: rec.GetVm(), Uid: rec.GetUid(), Generation: rec.GetGeneration(), Phase: phase}
}

// all that a node owns, as it would report it.
func (r *restored) all(node string) (all []*nodev1.Held) {
	r.t.Helper()
	list, err := r.records.List(r.t.Context(), &nodev1.ListRequest{Node: node})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, rec := range list.GetRecords() {
		all = append(all, held(rec, "OWN"))
	}
	return all
}

func (r *restored) report(node string, all ...*nodev1.Held) *nodev1.StoreState {
	r.t.Helper()
	state, err := r.whole.Report(r.as(node), &nodev1.ReportRequest{Node: node, Held: all})
	if err != nil {
		r.t.Fatalf("report of %s: %v", node, err)
	}
	return state
}

func (r *restored) restore(retire ...string) {
	r.t.Helper()
	if _, err := r.whole.Restore(r.t.Context(), &nodev1.RestoreRequest{Retire: retire}); err != nil {
		r.t.Fatal(err)
	}
}

// settle lets the time pass after which living nodes have announced themselves.
func (r *restored) settle() *nodev1.StoreState {
	r.t.Helper()
	r.clock = r.clock.Add(controller.SettleDelay)
	state, err := r.whole.State(r.t.Context(), &nodev1.StateRequest{})
	if err != nil {
		r.t.Fatal(err)
	}
	return state
}

// refused wants a claim of a node refused for now, with a text that says these words.
func (r *restored) refused(vm *nodev1.VM, node string, words ...string) {
	r.t.Helper()
	rec := r.get(vm)
	_, err := r.records.Own(r.as(node), &nodev1.OwnRequest{Vm: vm, Node: node, Generation: rec.GetGeneration(),
		Uid: rec.GetUid()})
	if !errdefs.IsUnavailable(err) {
		r.t.Fatalf("claim of node %s: %v", node, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			r.t.Errorf("claim of node %s: %v does not say %q", node, err, w)
		}
	}
}

// A VM that went from a to b after the copy was made is b's once the nodes have reported: until then no claim is
// admitted. Afterwards a cannot have it, and its next owner's generation is above every one that was ever given.
func TestPutBackWithTheCommand(t *testing.T) {
	r := newRestored(t)
	onA := r.boot(web, "a")
	copied := r.memory.Copy()
	onB := r.give(onA, "b")
	r.memory.PutBack(copied)
	r.restore()
	r.refused(web, "a", "a, b, c", "godwit controller retire NODE")
	if _, err := r.records.Ensure(r.as("b"),
		&nodev1.EnsureRequest{Vm: &nodev1.VM{Namespace: "ns", Id: "new"}}); !errdefs.IsUnavailable(err) {
		t.Errorf("a new record while nodes are waited for: %v", err)
	}
	r.report("a")
	r.report("b", held(onB, "OWN"))
	r.settle()
	r.refused(web, "a", "have not said what they hold: c.")
	r.report("c")
	if s := r.settle(); s.GetWaiting() || s.GetIncarnation() != 1_800_000_000 {
		t.Fatalf("%v", s)
	}
	rec := r.get(web)
	if rec.GetOwner().GetNode() != "b" || rec.GetGeneration() != onB.GetGeneration() || rec.GetUid() != onB.GetUid() {
		t.Fatalf("%v", rec)
	}
	if _, err := r.records.Own(r.as("a"), &nodev1.OwnRequest{Vm: web, Node: "a",
		Generation: rec.GetGeneration()}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a claims it: %v", err)
	}
	next := r.give(rec, "a")
	if next.GetGeneration() <= record.Floor(1_800_000_000) {
		t.Errorf("the next owner's generation is %d", next.GetGeneration())
	}
}

// Without the command the first node that holds a newer claim is heard: that record changes no more,
// in a store that is opened again too, until somebody decides.
func TestPutBackWithoutTheCommand(t *testing.T) {
	r := newRestored(t)
	onA := r.boot(web, "a")
	copied := r.memory.Copy()
	onB := r.boot(web, "a") // a newer claim of the same node
	r.memory.PutBack(copied)
	if s := r.report("b"); s.GetBehind() != nil {
		t.Fatalf("a node that holds nothing: %v", s)
	}
	if s := r.report("a", held(onA, "OWN")); s.GetBehind() != nil {
		t.Fatalf("a node that holds what the record says: %v", s)
	}
	r.report("a", held(onB, "OWN"))
	r.records = controller.New(r.memory)
	r.refused(web, "a", "older than what node a holds", "ns/web", "owner number 2", "godwit controller restore",
		"godwit controller retire a")
	if rec := r.get(web); rec.GetGeneration() != onA.GetGeneration() {
		t.Errorf("reads go on: %v", rec)
	}
	r.restore()
	r.report("a", held(onB, "OWN"))
	r.report("b")
	r.report("c")
	r.settle()
	if rec := r.get(web); rec.GetOwner().GetNode() != "a" || rec.GetGeneration() != onB.GetGeneration() {
		t.Errorf("%v", rec)
	}
}

// An incarnation that a node has seen and the store does not know shows that it went back.
func TestPutBackBeforeAnIncarnation(t *testing.T) {
	r := newRestored(t)
	r.boot(web, "a")
	for _, node := range []string{"b", "a"} { // one may lie
		r.boot(web, "a")
		if _, err := r.whole.Report(r.as(node), &nodev1.ReportRequest{Node: node, Incarnation: 1_700_000_000}); err != nil {
			t.Fatal(err)
		}
	}
	r.refused(web, "a", "it has seen incarnation 1700000000")
	for _, node := range []string{"a", "b"} {
		if _, err := r.whole.Retire(t.Context(), &nodev1.RetireRequest{Node: node}); err != nil {
			t.Fatal(err)
		}
	}
	r.boot(web, "a")
	if _, err := r.whole.Report(r.as("c"), &nodev1.ReportRequest{Node: "c", Incarnation: 9_000_000_000}); err != nil {
		t.Fatal(err)
	}
	r.boot(web, "a") // none that anybody has given by now
}

// A node that lies takes no VM of another one: the owner refutes it, however often it is said and whatever
// generation, and claims go on. About a claim that no node can have, not even the owner is asked.
func TestRogueReport(t *testing.T) {
	r := newRestored(t)
	onA := r.boot(web, "a")
	absurdLie := held(onA, "OWN")
	for _, generation := range []uint64{1 << 60, 1<<64 - 1} {
		absurdLie.Generation = generation
		s := r.report("b", absurdLie)
		if s.GetBehind() != nil || len(s.GetDoubts()) != 0 {
			t.Fatalf("generation %d: %v", generation, s)
		}
	}
	onA = r.boot(web, "a")
	r.nodes = append(r.nodes, "d")
	for n := range uint64(5) {
		lie := held(onA, "OWN")
		lie.Generation += n + 1
		if s := r.report("d", lie); s.GetBehind() != nil || len(s.GetDoubts()) != 1 {
			t.Fatalf("lie %d: %v", n, s)
		}
		if n == 0 {
			r.refused(web, "a", "node d says of it")
			r.report("a", held(onA, "OWN"))
		}
		onA = r.boot(web, "a")
		r.report("d") // it takes its word back, to say it again
	}
	var many []*nodev1.Held
	for n := range 1000 {
		lie := held(r.boot(&nodev1.VM{Namespace: "ns", Id: fmt.Sprint(n)}, "a"), "OWN")
		lie.Generation += 7
		many = append(many, lie)
	}
	if s := r.report("d", many...); s.GetBehind() != nil || len(s.GetDoubts()) > 20 {
		t.Fatalf("%d doubts, behind %v", len(s.GetDoubts()), s.GetBehind())
	}
	if _, err := r.whole.Retire(t.Context(), &nodev1.RetireRequest{Node: "d"}); err != nil {
		t.Fatal(err)
	}
	for _, lie := range many[:20] {
		r.boot(lie.GetVm(), "a")
	}
	onA = r.boot(web, "a")
	if _, err := r.whole.Report(r.as("b"), &nodev1.ReportRequest{Node: "a"}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("b speaks for a: %v", err)
	}
	for what, err := range map[string]error{
		"restore": func() error { _, err := r.whole.Restore(r.as("b"), &nodev1.RestoreRequest{}); return err }(),
		"retire":  func() error { _, err := r.whole.Retire(r.as("b"), &nodev1.RetireRequest{Node: "a"}); return err }(),
	} {
		if !errdefs.IsPermissionDenied(err) {
			t.Errorf("b orders to %s: %v", what, err)
		}
	}
	// While the store waits its word stands against a's: neither is believed, nothing is ended.
	r.restore()
	lie := held(onA, "OWN")
	lie.Generation++
	r.report("a", r.all("a")...)
	r.report("b", lie)
	r.report("c")
	r.report("d")
	if s := r.settle(); s.GetWaiting() || s.GetConflicts() != 1 {
		t.Fatalf("%v", s)
	}
	rec := r.get(web)
	if rec.GetOwner().GetNode() != "a" || !rec.GetRivals() ||
		!strings.Contains(rec.GetConflict(), fmt.Sprintf("nodes b (its owner number %d) and a (number %d)",
			lie.GetGeneration(),
			onA.GetGeneration())) {
		t.Fatalf("%v", rec)
	}
	_, err := r.records.Own(r.as("a"), &nodev1.OwnRequest{Vm: web, Node: "a", Generation: rec.GetGeneration()})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "nodes b") {
		t.Errorf("a claim of a VM in conflict: %v", err)
	}
	r.restore("b")
	r.report("a", r.all("a")...)
	r.report("b", lie) // the owner is not asked
	r.report("c")
	r.report("d")
	r.settle()
	if rec := r.get(web); rec.GetOwner().GetNode() != "a" || rec.GetConflict() != "" {
		t.Errorf("after the word of the operator: %v", rec)
	}
	r.boot(web, "a")
	absurd := held(r.get(web), "OWN")
	absurd.Generation = 1<<64 - 1
	r.restore()
	r.report("a", r.all("a")...)
	r.report("b", absurd)
	r.report("c")
	r.report("d")
	if r.settle(); r.get(web).GetConflict() != "" {
		t.Errorf("a generation that was not given is in the way: %v", r.get(web))
	}
}

// A node that was retired by name is not waited for. Names that the store does not know, the controller's own, and
// one that nothing waits for are refused, and nothing changes.
func TestRetire(t *testing.T) {
	r := newRestored(t)
	r.boot(web, "a")
	if _, err := r.whole.Retire(t.Context(), &nodev1.RetireRequest{Node: "a"}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("retire while nothing waits: %v", err)
	}
	for _, name := range []string{"", "nobody", "c"} {
		if _, err := r.whole.Restore(t.Context(), &nodev1.RestoreRequest{Retire: []string{name}}); !errdefs.IsInvalidArgument(
			err) {
			t.Errorf("restore, retire %q: %v", name, err)
		}
	}
	if s := r.settle(); s.GetIncarnation() != 0 {
		t.Fatalf("a refused order: %v", s)
	}
	r.restore()
	for _, name := range []string{"", "nobody", "c"} {
		if _, err := r.whole.Retire(t.Context(), &nodev1.RetireRequest{Node: name}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("retire %q: %v", name, err)
		}
	}
	r.report("c")
	r.report("b")
	for range 2 {
		if _, err := r.whole.Retire(t.Context(), &nodev1.RetireRequest{Node: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	if s := r.settle(); s.GetWaiting() {
		t.Fatalf("%v", s)
	}
	// godwit recover takes it from there
	if rec := r.get(web); rec.GetOwner().GetNode() != "a" || rec.GetConflict() != "" {
		t.Errorf("%v", rec)
	}
}

// A node that the copy does not know is waited for as soon as it is heard.
func TestNodeThatTheCopyDoesNotKnow(t *testing.T) {
	r := newRestored(t)
	onA := r.boot(web, "a")
	copied := r.memory.Copy()
	onD := r.give(onA, "d")
	r.memory.PutBack(copied)
	r.restore()
	for _, n := range r.nodes {
		r.report(n)
	}
	for range 2 {
		if s, asked, err := r.whole.Told(t.Context(), "d"); err != nil || !asked || s.GetMissing()[0] != "d" {
			t.Fatalf("%v, %v, %v", s, asked, err)
		}
	}
	if _, asked, err := r.whole.Told(t.Context(), "a"); err != nil || asked {
		t.Errorf("a has reported: %v, %v", asked, err)
	}
	if s := r.settle(); !s.GetWaiting() {
		t.Fatal("d was not waited for")
	}
	r.report("d", held(onD, "OWN"))
	r.settle()
	if rec := r.get(web); rec.GetOwner().GetNode() != "d" {
		t.Errorf("%v", rec)
	}
}
