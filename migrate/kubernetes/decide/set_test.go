package decide_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func equal(a, b any) bool { return equality.Semantic.DeepEqual(a, b) }

func set() *v1alpha1.VirtualMachineSet {
	return &v1alpha1.VirtualMachineSet{ObjectMeta: metav1.ObjectMeta{Name: "set", Namespace: "ns", UID: "s1",
		Generation: 2},
		Spec: v1alpha1.VirtualMachineSetSpec{MoveScope: v1alpha1.MoveMain, OnFailure: v1alpha1.OnFailureStop,
			Members: []v1alpha1.SetMember{{Name: "main", Role: v1alpha1.RoleMain},
				{Name: "worker", Role: v1alpha1.RoleMember}, {Name: "helper", Role: v1alpha1.RoleHelper}}}}
}

// setWorld is a set whose members all are as owner says, and want to be.
func setWorld(owner *nodev1.Owner) decide.Set {
	o := decide.Set{Object: set(), VMs: map[string]*v1alpha1.VirtualMachine{}, Records: map[string]*nodev1.Record{},
		Engine: true}
	for _, m := range o.Object.Spec.Members {
		vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "set-" + m.Name, Namespace: "ns",
			UID: types.UID("uid-" + m.Name), Labels: map[string]string{pods.LabelMember: m.Name}}}
		vm.Spec.OperatingMode = v1alpha1.ModeRunning
		if owner.GetNode() == "" {
			vm.Spec.OperatingMode = v1alpha1.ModeHibernated
		}
		o.VMs[m.Name] = vm
		o.Records[m.Name] = record(owner, 3, nil)
	}
	return o
}

// steps makes what is decided until nothing is, with VMs that become what they are told at once.
func steps(t *testing.T, o decide.Set, owner *nodev1.Owner) (all []string) {
	t.Helper()
	for range 20 {
		next := decide.NextSet(o)
		if next.Do != decide.UpdateVM {
			want{do: decide.None}.check(t, next)
			return all
		}
		name := next.VM.Labels[pods.LabelMember]
		all = append(all, name+" "+string(next.VM.Spec.OperatingMode))
		o.VMs[name] = next.VM
		if again := decide.NextSet(o); again.Do != decide.None || again.Waits != decide.ReasonOperation {
			t.Errorf("before %s has become it, %s is done", name, again.Do)
		}
		o.Records[name].Owner = owner
	}
	t.Fatal("it does not end")
	return nil
}

// A set is suspended and resumed, and its VMs move, one after the other in their order.
func TestSetInOrder(t *testing.T) {
	o := setWorld(atA)
	want{do: decide.None}.check(t, decide.NextSet(o))
	o.Object.Spec.Suspend = true
	got := steps(t, o, asleep)
	if !slices.Equal(got, []string{"helper Hibernated", "worker Hibernated", "main Hibernated"}) {
		t.Errorf("suspended as %q", got)
	}
	o.Object.Spec.Suspend = false
	if got = steps(t, o, atA); !slices.Equal(got, []string{"main Running", "worker Running", "helper Running"}) {
		t.Errorf("resumed as %q", got)
	}
	o.Object.Spec.Suspend, o.Object.Spec.Order = true, []string{"main", "helper", "worker"}
	got = steps(t, o, asleep)
	if !slices.Equal(got, []string{"main Hibernated", "helper Hibernated", "worker Hibernated"}) {
		t.Errorf("suspended in its own order as %q", got)
	}
}

// The others follow the main VM's record, if all are to move: one order each, and a failure stops the rest or not.
func TestSetMoves(t *testing.T) {
	o := setWorld(atA)
	o.Object.Spec.NodeName = "b"
	next := decide.NextSet(o)
	want{do: decide.UpdateVM, detail: "set-main Running"}.check(t, next)
	if next.VM.Spec.NodeName != "b" {
		t.Errorf("the main VM is wanted on %q", next.VM.Spec.NodeName)
	}
	o.VMs["main"] = next.VM
	want{do: decide.None}.check(t, decide.NextSet(o)) // the others stay

	o.Records["main"].Owner = &nodev1.Owner{Node: "b"}
	next = decide.NextSet(o)
	want{do: decide.None}.check(t, next)
	if all := o.Elsewhere(); !slices.Equal(all, []string{"helper", "worker"}) {
		t.Errorf("elsewhere are %q", all)
	}
	said := false
	for _, c := range decide.SetStatus(o, next).Conditions {
		said = said || c.Type == decide.CondElsewhere && c.Message == "helper, worker"
	}
	if !said {
		t.Error("no condition names the members that are elsewhere")
	}

	o.Object.Spec.MoveScope = v1alpha1.MoveAll
	next = decide.NextSet(o)
	want{do: decide.MakeOperation, detail: "Migrate b"}.check(t, next)
	if next.VM.Name != "set-helper" {
		t.Errorf("first %s moves", next.VM.Name)
	}
	order := v1alpha1.VMOperation{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		decide.AnnotationGeneration: "2"}}, Spec: v1alpha1.VMOperationSpec{Kind: v1alpha1.KindMigrate, NodeName: "b",
		VMRef: v1alpha1.VMRef{Name: "set-helper"}}}
	o.Orders = []v1alpha1.VMOperation{order}
	want{do: decide.None, waits: decide.ReasonOperation}.check(t, decide.NextSet(o))
	o.Orders[0].Status.Phase = v1alpha1.MigrationFailed
	want{do: decide.None, waits: decide.ReasonStopsAtFailure, refused: true}.check(t, decide.NextSet(o))
	o.Object.Spec.OnFailure = v1alpha1.OnFailureContinue
	if next = decide.NextSet(o); next.Do != decide.MakeOperation || next.VM.Name != "set-worker" {
		t.Errorf("after a failure that is passed over, %s of %v", next.Do, next.VM)
	}
	o.Records["worker"].Owner, o.Records["helper"].Owner = o.Records["main"].Owner, o.Records["main"].Owner
	want{do: decide.None}.check(t, decide.NextSet(o))
}

// Members that come and go.
func TestMembers(t *testing.T) {
	o := setWorld(atA)
	o.VMs["old"] = &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "set-old"}}
	want{do: decide.DeleteVM, detail: "set-old "}.check(t, decide.NextSet(o))
	o = setWorld(atA)
	delete(o.VMs, "helper")
	want{do: decide.MakeVM, detail: "set-helper Running"}.check(t, decide.NextSet(o))
	o.Records["helper"] = record(asleep, 3, nil)
	want{do: decide.MakeVM, detail: "set-helper Hibernated"}.check(t, decide.NextSet(o))
	o.Object.Spec.Suspend = true
	o.Records["helper"] = nil
	want{do: decide.MakeVM, detail: "set-helper Hibernated"}.check(t, decide.NextSet(o))
}

// A VM that has a member's name, and is not the set's, is not made again, and holds no other member up. The set says
// what to do.
func TestNameOfAMemberIsTaken(t *testing.T) {
	foreign := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "set-worker", Namespace: "ns", UID: "u9"}}
	taken := func(owner *nodev1.Owner) decide.Set {
		o := setWorld(owner)
		delete(o.VMs, "worker")
		delete(o.Records, "worker")
		o.Others = map[string]*v1alpha1.VirtualMachine{"worker": foreign}
		return o
	}
	o := taken(atA)
	refused := want{do: decide.None, waits: decide.ReasonInvalid, refused: true}
	next := decide.NextSet(o)
	if refused.check(t, next); next.After <= 0 || !strings.Contains(next.Message, "set-worker") {
		t.Errorf("it is looked at again after %v, and says %q", next.After, next.Message)
	}
	s := decide.SetStatus(o, next)
	if c := meta.FindStatusCondition(s.Conditions, decide.CondProgressing); c == nil || c.Message != next.Message ||
		s.Members[1].Reason != next.Message {
		t.Errorf("the status is %+v", s)
	}
	o.Object.Spec.Suspend = true
	want{do: decide.UpdateVM, detail: "set-helper Hibernated"}.check(t, decide.NextSet(o))
	o = taken(atA)
	o.Object.Spec.MoveScope = v1alpha1.MoveAll
	o.Records["main"].Owner = &nodev1.Owner{Node: "b"}
	want{do: decide.MakeOperation, detail: "Migrate b"}.check(t, decide.NextSet(o))
	o = taken(atA)
	delete(o.Others, "worker") // it is gone
	want{do: decide.MakeVM, detail: "set-worker Running"}.check(t, decide.NextSet(o))
}

// A member whose name fits no VM, no label or no repository is not made, and holds no other member up. The set says
// why.
func TestNameOfAMemberFitsNothing(t *testing.T) {
	for name, fits := range map[string]bool{"a-1": true, strings.Repeat("a", 26): true, strings.Repeat("a", 27): false,
		"a.b": false, "-a": false, "a-": false, "A": false, "a_b": false, "a/b": false, "..": false, ".": false} {
		o := setWorld(atA)
		delete(o.VMs, "worker")
		o.Object.Spec.Members[1].Name = name
		next := decide.NextSet(o)
		if fits {
			want{do: decide.MakeVM, detail: "set-" + name + " Running"}.check(t, next)
			continue
		}
		want{do: decide.None, waits: decide.ReasonInvalid, refused: true}.check(t, next)
		if s := decide.SetStatus(o, next); !strings.Contains(next.Message, name) || s.Members[1].Reason != next.Message {
			t.Errorf("%s: %q, %+v", name, next.Message, s.Members)
		}
		delete(o.VMs, "helper")
		want{do: decide.MakeVM, detail: "set-helper Running"}.check(t, decide.NextSet(o))
	}
}

// A member that sleeps is asleep, also with an operation that its lost node ends never: the next one goes on.
func TestSuspendedWithALostNode(t *testing.T) {
	const wake, hibernate = nodev1.Kind_KIND_WAKE, nodev1.Kind_KIND_HIBERNATE
	const sending, cleans = nodev1.Phase_PHASE_TRANSFERRING, nodev1.Phase_PHASE_CLEANING
	for name, test := range map[string]struct {
		op   *nodev1.Operation
		lost bool
		next bool
	}{
		"it wakes at a lost node":           {operation(wake, sending), true, true},
		"it wakes":                          {operation(wake, sending), false, false},
		"it hibernated at a lost node":      {operation(hibernate, cleans), true, true},
		"it hibernated at one that is gone": {cleaning("a", time.Hour), false, true},
		"it has just hibernated":            {cleaning("a", time.Second), false, false},
	} {
		o := setWorld(atA)
		o.Object.Spec.Suspend, o.Now = true, now
		o.VMs["helper"].Spec.OperatingMode = v1alpha1.ModeHibernated
		o.Records["helper"] = record(asleep, 3, test.op)
		o.Lost = map[string]bool{"helper": test.lost}
		got := decide.NextSet(o)
		if next := got.Do == decide.UpdateVM && got.VM.Name == "set-worker"; next != test.next {
			t.Errorf("%s: decided %+v", name, got)
		}
	}
}
