package decide

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Set is what was observed of a VirtualMachineSet.
type Set struct {
	Object  *v1alpha1.VirtualMachineSet
	VMs     map[string]*v1alpha1.VirtualMachine // of this set, by member
	Records map[string]*nodev1.Record           // by member; nil: there is none
	Unread  error                               // as in VM
	Orders  []v1alpha1.VMOperation              // of the set's VMs
	Engine  bool
	// Others have the names of members, and are not this set's: somebody has taken the owner off, or made them.
	Others map[string]*v1alpha1.VirtualMachine
	Lost   map[string]bool // members whose node is lost (VM.Fenced)
	Now    time.Time
}

// takenLook is after how long a set looks again whether a name is free. Nothing tells it of a VM that is not its own.
const takenLook = 10 * time.Second

// NextSet decides what is done next of a set. Members are gone through in order, one step at a time.
func NextSet(o Set) Action {
	set := o.Object
	switch {
	case o.Unread != nil:
		return wait(ReasonRecordsUnavailable, o.Unread.Error())
	case set.DeletionTimestamp != nil:
		return Action{Do: None} // garbage collection deletes the VMs
	}
	for member, vm := range o.VMs {
		if o.member(member) == nil && vm.DeletionTimestamp == nil {
			return Action{Do: DeleteVM, VM: vm}
		}
	}
	for _, m := range set.Spec.Members { // whatever else: the VMs are there, with their records
		if o.VMs[m.Name] == nil && o.unmade(m.Name) == "" {
			return Action{Do: MakeVM, VM: o.vm(m, o.missingMode(m))}
		}
	}
	if next := o.modes(); next.Do != None || next.Waits != "" {
		return next
	}
	if next := o.moves(); next.Do != None || next.Waits != "" {
		return next
	}
	return o.taken()
}

// taken is a member that is not made. The other members go on.
func (o Set) taken() Action {
	for _, m := range o.Object.Spec.Members {
		if why := o.unmade(m.Name); o.VMs[m.Name] == nil && why != "" {
			next := refuse(ReasonInvalid, why)
			if o.Others[m.Name] != nil {
				next.After = takenLook
			}
			return next
		}
	}
	return Action{Do: None}
}

// unmade is why the VM of a member is not made: another VM has its name, or its name does not fit.
func (o Set) unmade(member string) string {
	if other := o.Others[member]; other != nil {
		return fmt.Sprintf("VirtualMachine %s is there, and this set is not its owner: give it the owner back "+
			"(metadata.ownerReferences, with uid %s and controller true), or delete it", other.Name, o.Object.UID)
	}
	if err := pods.CheckMember(o.Object, member); err != nil {
		return err.Error()
	}
	return ""
}

func (o Set) member(name string) *v1alpha1.SetMember {
	for i := range o.Object.Spec.Members {
		if o.Object.Spec.Members[i].Name == name {
			return &o.Object.Spec.Members[i]
		}
	}
	return nil
}

// missingMode is that of a member that is made again. What sleeps stays asleep until its turn comes.
func (o Set) missingMode(m v1alpha1.SetMember) v1alpha1.OperatingMode {
	if o.Object.Spec.Suspend || o.Records[m.Name].GetOwner().GetDigest() != "" {
		return v1alpha1.ModeHibernated
	}
	return v1alpha1.ModeRunning
}

// vm is the VM of a member, as it should be.
func (o Set) vm(m v1alpha1.SetMember, mode v1alpha1.OperatingMode) *v1alpha1.VirtualMachine {
	set := o.Object
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: pods.MemberVM(set, m.Name),
		Namespace: set.Namespace, Labels: map[string]string{pods.LabelMember: m.Name},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set,
			v1alpha1.GroupVersion.WithKind("VirtualMachineSet"))}},
		Spec: v1alpha1.VirtualMachineSpec{VirtualMachineSettings: *m.Spec.DeepCopy(), OperatingMode: mode}}
	if old := o.VMs[m.Name]; old != nil {
		vm.ObjectMeta = *old.ObjectMeta.DeepCopy()
	}
	if m.Role == v1alpha1.RoleMain {
		vm.Spec.NodeName = set.Spec.NodeName
	}
	return vm
}

// Sequence is the order of suspension: as it is said, else helpers, members, the main one.
func Sequence(set *v1alpha1.VirtualMachineSet) (all []v1alpha1.SetMember) {
	if len(set.Spec.Order) > 0 {
		for _, name := range set.Spec.Order {
			if i := slices.IndexFunc(set.Spec.Members, func(m v1alpha1.SetMember) bool { return m.Name == name }); i >= 0 {
				all = append(all, set.Spec.Members[i])
			}
		}
		return all
	}
	for _, role := range []v1alpha1.MemberRole{v1alpha1.RoleHelper, v1alpha1.RoleMember, v1alpha1.RoleMain} {
		for _, m := range set.Spec.Members {
			if m.Role == role || m.Role == "" && role == v1alpha1.RoleMember {
				all = append(all, m)
			}
		}
	}
	return all
}

// modes has each member become what the set wants, after those before it have.
func (o Set) modes() Action {
	order, want := Sequence(o.Object), v1alpha1.ModeHibernated
	if !o.Object.Spec.Suspend {
		slices.Reverse(order)
		want = v1alpha1.ModeRunning
	}
	for _, m := range order {
		vm := o.VMs[m.Name]
		if vm == nil {
			continue
		}
		wanted := o.vm(m, want)
		if vm.DeletionTimestamp == nil && !equality.Semantic.DeepEqual(vm.Spec, wanted.Spec) {
			return Action{Do: UpdateVM, VM: wanted}
		}
		if failed, why := broken(vm); failed {
			if o.Object.Spec.OnFailure == v1alpha1.OnFailureContinue {
				continue
			}
			return refuse(ReasonStopsAtFailure, fmt.Sprintf("member %s: %s", m.Name, why))
		}
		if !o.reached(m.Name, want) {
			waits := wait(ReasonOperation, fmt.Sprintf("member %s becomes %s", m.Name, want))
			_, waits.After = unreleased(o.Records[m.Name].GetOperation(), o.Now)
			return waits
		}
	}
	return Action{Do: None}
}

// reached: by the record, for a status is a copy.
func (o Set) reached(member string, want v1alpha1.OperatingMode) bool {
	rec := o.Records[member]
	if want == v1alpha1.ModeRunning {
		return rec.GetOwner().GetNode() != "" && rec.GetOperation().GetKind() != nodev1.Kind_KIND_WAKE
	}
	op := rec.GetOperation()
	switch {
	case rec == nil: // what never ran has no state
		return true
	case rec.GetOwner().GetNode() != "":
		return false
	}
	// A lost node ends no wake, and one that is gone no hibernate that is committed. The VM sleeps.
	return op == nil || durable(rec, o.Lost[member], o.Now) || o.Lost[member] && op.GetKind() == nodev1.Kind_KIND_WAKE
}

// broken is a member that cannot become what is wanted until somebody does something.
func broken(vm *v1alpha1.VirtualMachine) (bool, string) {
	for _, c := range vm.Status.Conditions {
		if c.Type == CondProgressing && c.Status == metav1.ConditionFalse && c.Reason != string(ReasonRecordsUnavailable) &&
			c.ObservedGeneration == vm.Generation {
			return true, c.Message
		}
	}
	return vm.Status.Phase == v1alpha1.VMLost || vm.Status.Phase == v1alpha1.VMFailed, string(vm.Status.Phase)
}

// Main is the main member's name.
func Main(set *v1alpha1.VirtualMachineSet) string {
	for _, m := range set.Spec.Members {
		if m.Role == v1alpha1.RoleMain {
			return m.Name
		}
	}
	return ""
}

// Elsewhere lists, in order, the members on another node than the main one is by its record.
func (o Set) Elsewhere() (all []string) {
	node := o.Records[Main(o.Object)].GetOwner().GetNode()
	for _, m := range Sequence(o.Object) {
		at := o.Records[m.Name].GetOwner().GetNode()
		if node != "" && at != "" && at != node {
			all = append(all, m.Name)
		}
	}
	return all
}

func (o Set) generation() string { return strconv.FormatInt(o.Object.Generation, 10) }

// moves has the members follow the main one, one after the other.
func (o Set) moves() Action {
	main := o.Records[Main(o.Object)]
	if o.Object.Spec.MoveScope != v1alpha1.MoveAll || main.GetOperation() != nil {
		return Action{Do: None}
	}
	for _, name := range o.Elsewhere() {
		vm, failed := o.VMs[name], false
		for _, op := range o.Orders {
			if op.Spec.VMRef.Name != vm.Name || op.Spec.Kind != v1alpha1.KindMigrate {
				continue
			}
			if !Closed(&op) {
				return wait(ReasonOperation, fmt.Sprintf("member %s moves", name))
			}
			if op.Status.Phase == v1alpha1.MigrationFailed && op.Annotations[AnnotationGeneration] == o.generation() {
				failed = true
			}
		}
		switch {
		case failed && o.Object.Spec.OnFailure != v1alpha1.OnFailureContinue:
			return refuse(ReasonStopsAtFailure, fmt.Sprintf("the move of member %s has failed: the rest stays", name))
		case failed:
			continue
		case o.Records[name].GetOperation() != nil:
			return wait(ReasonOperation, fmt.Sprintf("member %s moves", name))
		case !o.Engine:
			return missing("Migrate of member " + name)
		}
		return Action{Do: MakeOperation, Kind: v1alpha1.KindMigrate, Node: main.GetOwner().GetNode(), VM: vm}
	}
	return Action{Do: None}
}

// SetStatus is what the status says of what was observed, and of what is done next.
func SetStatus(o Set, next Action) v1alpha1.VirtualMachineSetStatus {
	old := o.Object.Status
	s := v1alpha1.VirtualMachineSetStatus{ObservedGeneration: o.Object.Generation}
	for _, c := range old.Conditions {
		if slices.Contains([]string{CondReady, CondProgressing, CondElsewhere}, c.Type) {
			s.Conditions = append(s.Conditions, c)
		}
	}
	say := func(kind string, status metav1.ConditionStatus, reason Reason, message string) {
		setCondition(&s.Conditions, s.ObservedGeneration, kind, status, reason, message)
	}
	if o.Unread != nil {
		s = *old.DeepCopy()
		s.ObservedGeneration = o.Object.Generation
		say(CondReady, metav1.ConditionUnknown, ReasonRecordsUnavailable, o.Unread.Error())
		return s
	}
	s.Node = o.Records[Main(o.Object)].GetOwner().GetNode()
	ready := true
	for _, m := range o.Object.Spec.Members {
		member := v1alpha1.MemberStatus{Name: m.Name, Phase: v1alpha1.VMPending,
			Node: o.Records[m.Name].GetOwner().GetNode()}
		if vm := o.VMs[m.Name]; vm != nil {
			if vm.Status.Phase != "" {
				member.Phase = vm.Status.Phase
			}
			if failed, why := broken(vm); failed {
				member.Reason = why
			}
			ready = ready && meta.IsStatusConditionTrue(vm.Status.Conditions, CondReady)
		} else {
			ready = false
			member.Reason = o.unmade(m.Name)
		}
		if m.Name == Main(o.Object) {
			s.Phase = member.Phase
		}
		s.Members = append(s.Members, member)
	}
	if ready {
		say(CondReady, metav1.ConditionTrue, ReasonRunning, "")
	} else {
		say(CondReady, metav1.ConditionFalse, ReasonPodNotReady, "")
	}
	switch {
	case next.Refused:
		say(CondProgressing, metav1.ConditionFalse, next.Waits, next.Message)
	case next.Do != None || next.Waits != "":
		say(CondProgressing, metav1.ConditionTrue, cmp.Or(next.Waits, ReasonOperation), next.Message)
	default:
		meta.RemoveStatusCondition(&s.Conditions, CondProgressing)
	}
	if all := o.Elsewhere(); len(all) > 0 {
		say(CondElsewhere, metav1.ConditionTrue, ReasonRunning, strings.Join(all, ", "))
	} else {
		meta.RemoveStatusCondition(&s.Conditions, CondElsewhere)
	}
	return s
}
