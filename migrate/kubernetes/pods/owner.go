package pods

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// RecordID is the name that a VM has in the records. A namespace has no dot.
func RecordID(vm *v1alpha1.VirtualMachine) string { return vm.Namespace + "." + vm.Name }

// Has reports whether a record is a VM's: the VM claims it, or is a member of the set that the record hangs on.
func Has(vm *v1alpha1.VirtualMachine, set *v1alpha1.VirtualMachineSet, rec *nodev1.Record) bool {
	if vm == nil || rec == nil || rec.GetVm().GetId() != RecordID(vm) {
		return false
	}
	member := Member(vm, set)
	return Claims(vm, rec.GetUid()) || member != "" && HangsOn(set.UID, member, rec.GetUid())
}

// Claims reports whether a VM says by itself that the record of its name with that uid is its own. A record has the uid
// of the object that it was made for. A member's has another one, which the operator writes into the VM's status. So
// the VM keeps its record when its set goes, or when somebody takes label and owner off. The name has to fit as well: a
// status can be copied.
func Claims(vm *v1alpha1.VirtualMachine, uid string) bool {
	return uid != "" && (uid == string(vm.UID) || uid == vm.Status.RecordUID && Fits(vm.Name, uid))
}

// Fits reports whether a uid is of the record of a member of a set, and a VM of that name can be this member.
func Fits(vm, uid string) bool {
	_, member, _ := strings.Cut(uid, ".")
	set, ok := strings.CutSuffix(vm, "-"+member)
	return member != "" && ok && set != ""
}

// SetNames are the sets that a VM may be a member of: by its owner, and by the uid of its record.
func SetNames(vm *v1alpha1.VirtualMachine, rec *nodev1.Record) (all []string) {
	if owner := SetOwner(vm); owner != nil {
		all = append(all, owner.Name)
	}
	if Fits(vm.Name, rec.GetUid()) {
		_, member, _ := strings.Cut(rec.GetUid(), ".")
		all = append(all, strings.TrimSuffix(vm.Name, "-"+member))
	}
	return slices.Compact(all)
}

// SetOwner is the set that controls a VM, as the VM says; nil: none does. Anybody may write that.
func SetOwner(vm *v1alpha1.VirtualMachine) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(vm)
	if owner == nil || owner.Kind != "VirtualMachineSet" || owner.APIVersion != v1alpha1.GroupVersion.String() {
		return nil
	}
	return owner
}

// MemberVM is the name of the VM that is a member.
func MemberVM(set *v1alpha1.VirtualMachineSet, member string) string { return set.Name + "-" + member }

// Member is the member of a set that a VM is; empty: it is none. The VM says who owns it. That counts if the set is in
// its namespace, has that uid, and lists a member whose VM has this name.
func Member(vm *v1alpha1.VirtualMachine, set *v1alpha1.VirtualMachineSet) string {
	owner := SetOwner(vm)
	if set == nil || owner == nil || owner.UID != set.UID || owner.Name != set.Name || vm.Namespace != set.Namespace {
		return ""
	}
	return Listed(vm.Name, set)
}

// Listed is the member of a set whose VM has that name; empty: the set lists none.
func Listed(vm string, set *v1alpha1.VirtualMachineSet) string {
	for i := range set.Spec.Members {
		if member := set.Spec.Members[i].Name; vm == MemberVM(set, member) {
			return member
		}
	}
	return ""
}

// Members are those VMs of a set, by member, whose names are the members'. Of what the set lists no more, the label
// says which member it was. A copy under another name is none, whatever its label says.
func Members(set *v1alpha1.VirtualMachineSet, all []v1alpha1.VirtualMachine) map[string]*v1alpha1.VirtualMachine {
	found := map[string]*v1alpha1.VirtualMachine{}
	for i := range all {
		vm := &all[i]
		member, owner := Member(vm, set), SetOwner(vm)
		if label := vm.Labels[LabelMember]; member == "" && owner != nil && owner.UID == set.UID &&
			vm.Name == MemberVM(set, label) {
			member = label
		}
		if member != "" {
			found[member] = vm
		}
	}
	return found
}

// labelMax is the longest value of a label, and the longest label of a host's name.
const labelMax = 63

// CheckMember refuses a member whose name does not fit where it is needed. The name of its VM is one of a host. The uid
// of its record is a label, and the last part of a repository.
func CheckMember(set *v1alpha1.VirtualMachineSet, member string) error {
	uid := memberUID(types.UID(uuid.Nil.String()), member, 0)
	problems := append(validation.IsDNS1123Label(MemberVM(set, member)), validation.IsValidLabelValue(uid)...)
	if len(problems) == 0 && record.IsUID(uid) {
		return nil
	}
	return fmt.Errorf("member %s: use a name of %d small letters, digits and dashes at most, with none of the dashes at "+
		"an end; with the name of the set, %d: %w", member, labelMax-len(uuid.Nil.String())-1, labelMax-1,
		errdefs.ErrInvalidArgument)
}

// lives is how often a member may be taken out of its set and put in again. Lives whose removal is forgotten do not
// count.
const lives = 256

// MemberUIDs are the uids that the record of a member may have, by its life. That of a member hangs on its set: a
// member that is made again is the same VM. The first one is that of builds before. A member whose record was removed
// is another VM when it is in the set again: a node that was away may hold what was given up.
func MemberUIDs(set types.UID, member string) []string {
	all := make([]string, lives)
	for life := range all {
		all[life] = memberUID(set, member, life)
	}
	return all
}

func memberUID(set types.UID, member string, life int) string {
	root := string(set)
	if life > 0 {
		root = uuid.NewSHA1(uuid.NameSpaceOID, []byte("godwit.dev/member/"+root+"/"+strconv.Itoa(life))).String()
	}
	return root + "." + member
}

// HangsOn reports whether a uid is of the record of a member of that set.
func HangsOn(set types.UID, member, uid string) bool {
	if member == "" || !strings.HasSuffix(uid, "."+member) {
		return false
	}
	for life := range lives {
		if uid == memberUID(set, member, life) {
			return true
		}
	}
	return false
}

// Split is the namespace and the name of the VirtualMachine that a record is of, by its own name.
func Split(rec *nodev1.Record) (namespace, name string) {
	namespace, name, _ = strings.Cut(rec.GetVm().GetId(), ".")
	return namespace, name
}
