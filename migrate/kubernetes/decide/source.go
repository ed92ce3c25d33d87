package decide

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/pods"
)

// What work orders are known by.
const (
	// FinalizerSnapshot is on a VMSnapshot, and on its work order.
	FinalizerSnapshot = "godwit.dev/snapshot"
	// LabelNode of a work order is the node that it is for. A node reads those alone.
	LabelNode = "godwit.dev/node"
	// LabelSnapshotUID of a work order is the uid of its VMSnapshot.
	LabelSnapshotUID = "godwit.dev/snapshot-uid"
	// LabelEligible of a pod says that a work order for it was found valid.
	LabelEligible = "godwit.dev/capture-eligible"
)

// What is done for snapshots.
const (
	MakeContent    Do = "MakeContent"
	AdoptContent   Do = "AdoptContent" // it gets the labels that it should have
	DeleteContent  Do = "DeleteContent"
	ReleaseContent Do = "ReleaseContent" // from its finalizer
	TrimSnapshot   Do = "TrimSnapshot"   // it becomes a debt of the record
	// ReleaseSnapshot ends that it stays, of one whose VM has no record any more.
	ReleaseSnapshot Do = "ReleaseSnapshot"
	Promote         Do = "Promote" // a pod: it may be captured
	Demote          Do = "Demote"
	Capture         Do = "Capture" // as the order says; one that has begun is followed
	TellReady       Do = "TellReady"
	TellFailed      Do = "TellFailed"
	TellWorkload    Do = "TellWorkload" // that the snapshot is Ready, by a file in its containers
)

// The reasons of snapshots and of work orders.
const (
	ReasonSnapshotReady   Reason = "SnapshotReady"
	ReasonSourceNotFound  Reason = "SourceNotFound"
	ReasonStaleSource     Reason = "StaleSource"
	ReasonSourceGone      Reason = "SourceGone"
	ReasonNoNode          Reason = "SourceHasNoNode"
	ReasonContentConflict Reason = "ContentConflict"
	ReasonAmbiguous       Reason = "SnapshotLookupAmbiguous"
	ReasonNotListed       Reason = "NotListed"
	ReasonInUse           Reason = "SnapshotInUse"
	ReasonElsewhere       Reason = "StoredElsewhere"
	ReasonClaimed         Reason = "Claimed"
	ReasonCaptureFailed   Reason = "CaptureFailed"
	ReasonCancelled       Reason = "CaptureCancelled"
	ReasonTold            Reason = "Told"
	ReasonTellFailed      Reason = "TellFailed"
	ReasonVMSleeps        Reason = "VMSleeps"
	ReasonVMRestored      Reason = "VMRestored"
)

// CondFailed of a snapshot or a work order is final.
const CondFailed = "Failed"

// OrderName is the name of a snapshot's work order. It is the snapshot's name in the record too.
func OrderName(snapshot types.UID) string { return "vmsnap-" + string(snapshot) }

// ClaimName is the name of the lease of who captures a snapshot on a node. A policy has each node claim by its own name
// alone: so one that lies holds up no capture of another node. The name of an order has no dot.
func ClaimName(snapshot types.UID, node string) string {
	return OrderName(snapshot) + "." + nodeInClaim(node)
}

const (
	longestInClaim = 209 // of a node's name, so that a lease can have the name of the claim
	plainInClaim   = 169 // of one that is longer, before its hash; the policy knows both numbers
)

// nodeInClaim is a node's name, or how one begins that is too long, and its hash.
func nodeInClaim(node string) string {
	if len(node) <= longestInClaim {
		return node
	}
	return node[:plainInClaim] + hashOf(node)
}

// hashOf a name has 40 digits.
func hashOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:20])
}

// NodeLabel is a node's name as a label. One that is too long for a label is hashed; the spec has the name itself.
func NodeLabel(node string) string {
	if len(node) <= validation.LabelValueMaxLength {
		return node
	}
	return hashOf(node)
}

// SnapshotOf is the VMSnapshot that a work order is for. The order itself says so: one that has gone says it too.
func SnapshotOf(c *v1alpha1.VMSnapshotContent) types.NamespacedName {
	return types.NamespacedName{Namespace: c.Spec.SnapshotRef.Namespace, Name: c.Spec.SnapshotRef.Name}
}

// PodOf is the pod that a work order names.
func PodOf(c *v1alpha1.VMSnapshotContent) types.NamespacedName {
	return types.NamespacedName{Namespace: c.Spec.Source.PodRef.Namespace, Name: c.Spec.Source.PodRef.Name}
}

// Final reports whether a work order is Ready or has Failed. Its node writes it no more.
func Final(c *v1alpha1.VMSnapshotContent) bool {
	return meta.IsStatusConditionTrue(c.Status.Conditions, CondReady) ||
		meta.IsStatusConditionTrue(c.Status.Conditions, CondFailed)
}

// source says why a pod is not the one that is meant, or can be captured no more. Empty: it can.
func source(pod *corev1.Pod, namespace, name, uid string) (Reason, string) {
	switch {
	case pod == nil:
		return ReasonSourceNotFound, fmt.Sprintf("there is no pod %s/%s", namespace, name)
	case string(pod.UID) != uid:
		return ReasonStaleSource, fmt.Sprintf("pod %s/%s is another one by now: its uid is %s", namespace, name, pod.UID)
	case pod.DeletionTimestamp != nil || pods.Ended(pod):
		message := fmt.Sprintf("pod %s/%s ends, or has ended", namespace, name)
		if why := pod.Status.Reason; why != "" && len(why) <= validation.LabelValueMaxLength { // as DeadlineExceeded
			message += ": " + why
		}
		return ReasonSourceGone, message
	}
	return "", ""
}

// olderOrder compares by the time of creation, then by name.
func olderOrder(a, b *v1alpha1.VMSnapshotContent) int {
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// failed sets both conditions of something that will never be ready.
func failed(all *[]metav1.Condition, generation int64, why Reason, message string) {
	setCondition(all, generation, CondReady, metav1.ConditionFalse, why, message)
	setCondition(all, generation, CondFailed, metav1.ConditionTrue, why, message)
}
