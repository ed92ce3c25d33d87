// Package eviction answers the API server before it evicts a pod: a VM that moves live is moved first, and takes no
// disruption budget. A VM that stops takes its budget before it is frozen.
package eviction

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/schema"
)

// Path of the webhook.
const Path = "/evictions"

const (
	// mostBytes of a review; an Eviction is small.
	mostBytes = 1 << 20
	// MinGrace in seconds is what a hibernate at a stop needs at least.
	MinGrace = 30
)

// Webhook answers reviews of pods/eviction. It reads from the API server itself.
type Webhook struct {
	View   operator.View
	Client client.Client
}

// ServeHTTP implements http.Handler.
func (w Webhook) ServeHTTP(to http.ResponseWriter, req *http.Request) {
	review := &admissionv1.AdmissionReview{}
	body, err := io.ReadAll(http.MaxBytesReader(to, req.Body, mostBytes))
	if err == nil {
		err = json.Unmarshal(body, review)
	}
	if err != nil || review.Request == nil {
		http.Error(to, "the body is no AdmissionReview", http.StatusBadRequest)
		return
	}
	review.Response = w.Answer(req.Context(), review.Request)
	review.Response.UID = review.Request.UID
	review.Request = nil
	to.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(to).Encode(review) // an API server that went away asks again
}

// Answer is that to one eviction.
func (w Webhook) Answer(ctx context.Context, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	o := w.observe(ctx, req)
	answer := decide.NextEviction(o)
	dry := req.DryRun != nil && *req.DryRun
	switch {
	case answer.Allow:
		return &admissionv1.AdmissionResponse{Allowed: true}
	case answer.Order && dry:
		answer.Message = "the VM would move first"
	case answer.Order:
		answer.Message = w.order(ctx, o)
	}
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{Status: metav1.StatusFailure,
		Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: fmt.Sprintf("VM of pod %s/%s: %s", req.Namespace, req.Name, answer.Message)}}
}

func (w Webhook) observe(ctx context.Context, req *admissionv1.AdmissionRequest) (o decide.Eviction) {
	o = decide.Eviction{Engine: w.View.Engine, OnStop: w.View.OnStop, MinGrace: MinGrace}
	eviction := &policyv1.Eviction{}
	if err := json.Unmarshal(req.Object.Raw, eviction); err == nil && eviction.DeleteOptions != nil {
		o.Grace = eviction.DeleteOptions.GracePeriodSeconds
	}
	pod := &corev1.Pod{}
	there, err := w.View.Get(ctx, types.NamespacedName{Namespace: req.Namespace, Name: req.Name}, pod)
	if err != nil || !there {
		o.Unread = err
		return o
	}
	o.Pod = pod
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "VirtualMachine" || pod.Labels[pods.LabelVM] == "" {
		return o
	}
	vm, there, err := w.View.VM(ctx, types.NamespacedName{Namespace: req.Namespace, Name: owner.Name})
	if err == nil {
		err = w.View.Schemas.Check(ctx, "virtualmachines", "vmoperations")
	}
	switch {
	case err != nil:
		o.Unread = err
	case vm.Unread != nil:
		o.Unread = vm.Unread
	case there && vm.Object.UID == owner.UID:
		o.VM, o.Set, o.Record, o.Orders, o.Fenced = vm.Object, vm.Set, vm.Record, vm.Orders, vm.Fenced
		if o.Grace != nil { // else it is the pod's, which was made with what its class asked for
			o.Least, o.Unread = w.View.Grace(ctx, req.Namespace, vm.Record)
		}
	default:
		// Its object was deleted without its finalizer, and the VM may run.
		o.Unread = fmt.Errorf("its VirtualMachine %s is gone: delete the pod to end the VM", owner.Name)
	}
	return o
}

// order orders a move. Two evictions at the same moment order one: its name says of which generation of the VM, and
// its number among those.
func (w Webhook) order(ctx context.Context, o decide.Eviction) string {
	vm := o.VM
	op := &v1alpha1.VMOperation{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace,
		Name: decide.NextEvictionOrder(vm, o.Record, o.Orders),
		Annotations: map[string]string{decide.AnnotationGeneration: strconv.FormatInt(vm.Generation, 10),
			decide.AnnotationEvicted: strconv.FormatUint(o.Record.GetGeneration(), 10)},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "VirtualMachine",
			Name: vm.Name, UID: vm.UID}}},
		Spec: v1alpha1.VMOperationSpec{VMRef: v1alpha1.VMRef{Name: vm.Name, UID: string(vm.UID)},
			Kind: v1alpha1.KindMigrate, MigrationPolicy: vm.Spec.Migration, Priority: v1alpha1.PriorityCritical}}
	if err := w.Client.Create(ctx, op, schema.Strict); err != nil {
		if apierrors.IsAlreadyExists(err) && w.ofAnother(ctx, op) { // which has this name for good
			op.GenerateName, op.Name = op.Name+"-", ""
			if err = w.Client.Create(ctx, op, schema.Strict); err == nil {
				return fmt.Sprintf("VMOperation %s is %s", op.Name, v1alpha1.MigrationPending)
			}
		}
		if apierrors.IsAlreadyExists(err) {
			return "VMOperation " + op.Name + " is " + string(v1alpha1.MigrationPending)
		}
		if apierrors.IsForbidden(err) {
			return "a move cannot be ordered: " + err.Error()
		}
		return "a move is not ordered yet: " + err.Error()
	}
	return fmt.Sprintf("VMOperation %s is %s", op.Name, v1alpha1.MigrationPending)
}

// ofAnother reports whether an order of another VM has the name of this one: no eviction sees it among those of its VM.
func (w Webhook) ofAnother(ctx context.Context, op *v1alpha1.VMOperation) bool {
	old := &v1alpha1.VMOperation{}
	there, err := w.View.Get(ctx, client.ObjectKeyFromObject(op), old)
	return err == nil && there && old.Spec.VMRef.Name != op.Spec.VMRef.Name
}
