package controller_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A record that is made of a report is bound as one that its node makes: it has a uid by which nothing else can be
// reached, and counts for its node. A member of a set of VMs has one that hangs on its set, and its name may have dots.
// A name that is the controller's to give is a conflict, which nothing claims.
func TestRecordsThatAreMadeOfReports(t *testing.T) {
	r := newRestored(t)
	r.whole.Reserved = func(vm *nodev1.VM) bool { return strings.HasPrefix(vm.GetId(), "sandbox") }
	old := r.asleep("golden") // a record with such a uid counts
	sandbox, plain, member := uuid.NewString(), uuid.NewString(), uuid.NewString()+".main-0"
	dotted := uuid.NewString() + ".main.eu-1"
	ofSandbox := &nodev1.Held{Vm: vmOf("sandbox"), Uid: sandbox, Generation: 1, Phase: "OWN"}
	says := []*nodev1.Held{
		ofSandbox,
		{Vm: vmOf("up"), Uid: "../x", Generation: 1, Phase: "OWN"},
		{Vm: vmOf("upper"), Uid: strings.ToUpper(uuid.NewString()), Generation: 1, Phase: "OWN"},
		{Vm: vmOf("below"), Uid: uuid.NewString() + ".a/b", Generation: 1, Phase: "OWN"},
		{Vm: vmOf("above"), Uid: uuid.NewString() + "..", Generation: 1, Phase: "OWN"},
		{Vm: vmOf("dot"), Uid: uuid.NewString() + ".", Generation: 1, Phase: "OWN"},
		{Vm: vmOf("long"), Uid: uuid.NewString() + "." + strings.Repeat("a", 64), Generation: 1, Phase: "OWN"},
		{Vm: vmOf("dots"), Uid: uuid.NewString() + "...", Generation: 1, Phase: "OWN"},
		{Vm: vmOf("up-of"), Uid: uuid.NewString() + ".a/../b", Generation: 1, Phase: "OWN"},
		{Vm: vmOf("braces"), Uid: "{" + uuid.NewString() + "}", Generation: 1, Phase: "OWN"},
		{Vm: vmOf("upper-of"), Uid: strings.ToUpper(uuid.NewString()) + ".main", Generation: 1, Phase: "OWN"},
		{Vm: vmOf("dashed"), Uid: uuid.NewString() + ".-a", Generation: 1, Phase: "OWN"},
		{Vm: vmOf("dotted"), Uid: dotted, Generation: 1, Phase: "OWN"},
		{Vm: vmOf("member"), Uid: member, Generation: 1, Phase: "OWN"},
		{Vm: vmOf("plain"), Uid: plain, Generation: 1, Phase: "OWN"},
		newer(old),
	}
	r.restore()
	r.report("a")
	r.report("b", says...)
	r.report("c")
	if s := r.settle(); s.GetConflicts() != 12 {
		t.Errorf("%v", s)
	}
	for _, id := range []string{"up", "upper", "below", "above", "dot", "long", "dots", "up-of", "braces", "upper-of",
		"dashed"} {
		if rec, err := r.records.Get(t.Context(), &nodev1.GetRequest{Vm: vmOf(id)}); !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v, %v", id, rec, err)
		}
	}
	for id, uid := range map[string]string{"plain": plain, "member": member, "dotted": dotted} {
		rec, err := r.records.Get(t.Context(), &nodev1.GetRequest{Vm: vmOf(id)})
		if err != nil || rec.GetMadeBy() != "b" || rec.GetOwner().GetNode() != "b" || rec.GetUid() != uid {
			t.Errorf("%s: %v, %v", id, rec, err)
		}
	}
	if rec := r.get(old.GetVm()); rec.GetOwner().GetNode() != "b" {
		t.Errorf("%v", rec)
	}
	rec := r.get(vmOf("sandbox"))
	if rec.GetMadeBy() != "" || rec.GetOwner() != nil || !rec.GetRivals() ||
		!strings.Contains(rec.GetConflict(), "--retire b") {
		t.Errorf("%v", rec)
	}
	for _, node := range []string{"b", ""} {
		ctx := t.Context()
		if node != "" {
			ctx = r.as(node)
		}
		if _, err := r.records.Own(ctx, &nodev1.OwnRequest{Vm: rec.GetVm(), Node: "b",
			Generation: rec.GetGeneration()}); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("a claim of %q: %v", node, err)
		}
	}
	r.restore()
	r.report("a")
	r.report("b", ofSandbox)
	r.report("c")
	r.settle()
	if rec := r.get(vmOf("sandbox")); !rec.GetRivals() || rec.GetOwner() != nil {
		t.Errorf("node b says so once more: %v", rec)
	}
	r.restore("b")
	r.report("a")
	r.report("c")
	r.settle()
	if rec := r.get(vmOf("sandbox")); rec.GetRivals() || rec.GetUid() != sandbox {
		t.Errorf("after node b was retired: %v", rec)
	}
}
