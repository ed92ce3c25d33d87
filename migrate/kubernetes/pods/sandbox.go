package pods

import (
	"fmt"
	"hash/fnv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// agent-sandbox makes the pods of its Sandboxes itself. What follows is what its controller (v0.5.6) writes.
const (
	SandboxGroup = "agents.x-k8s.io"
	// LabelSandbox of a pod is an index: NameHash of the Sandbox's name.
	LabelSandbox = SandboxGroup + "/sandbox-name-hash"
	// AnnotationSandboxPod of a Sandbox is the name of its pod; none: that of the Sandbox.
	AnnotationSandboxPod = SandboxGroup + "/pod-name"
)

// sandboxVM begins the names of VMs whose pods agent-sandbox makes.
const sandboxVM = "sbx-"

// SandboxOf is the Sandbox that controls a pod, as the pod says; nil: none does.
func SandboxOf(pod *corev1.Pod) *metav1.OwnerReference {
	if pod == nil {
		return nil
	}
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "Sandbox" || !strings.HasPrefix(owner.APIVersion, SandboxGroup+"/") {
		return nil
	}
	return owner
}

// SandboxRecord is the name in the records of the VM of a Sandbox. A Sandbox that is made again is another VM.
func SandboxRecord(namespace, uid string) string { return namespace + "." + SandboxVM(uid) }

// SandboxVM is what annotation AnnotationVM of the pod of a Sandbox has. A policy of the API server guards it.
func SandboxVM(uid string) string { return sandboxVM + uid }

// IsSandboxRecord reports whether a name in the records is kept for VMs of Sandboxes.
func IsSandboxRecord(id string) bool {
	_, name, _ := strings.Cut(id, ".")
	return strings.HasPrefix(name, sandboxVM) && len(name) == len(sandboxVM)+uidSize
}

// OfSandbox reports whether a record is of the VM of a Sandbox, whose uid it has. A VirtualMachine may have such a
// name too.
func OfSandbox(rec *nodev1.Record) bool {
	namespace, _, _ := strings.Cut(rec.GetVm().GetId(), ".")
	return rec != nil && rec.GetMadeBy() == "" && rec.GetVm().GetId() == SandboxRecord(namespace, rec.GetUid())
}

// NameHash is how agent-sandbox writes the hash of a Sandbox's name.
func NameHash(name string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return fmt.Sprintf("%08x", h.Sum32())
}

const (
	wakeFor = "sbx-"
	uidSize = 36
)

// WakeFor is the id of the operation that wakes a VM in a pod that is there already. Asked again, the wake of that
// state of the record is the same one.
func WakeFor(pod string, version uint64) string { return fmt.Sprintf("%s%s-%d", wakeFor, pod, version) }

// WokenFor is the uid of the pod that an operation wakes a VM in; empty: the operation is another one's.
func WokenFor(op *nodev1.Operation) string {
	uid, ours := strings.CutPrefix(op.GetId(), wakeFor)
	if !ours || len(uid) < uidSize || op.GetKind() != nodev1.Kind_KIND_WAKE {
		return ""
	}
	return uid[:uidSize]
}
