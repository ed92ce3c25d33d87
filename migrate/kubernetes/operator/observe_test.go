package operator

import (
	"context"
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// torn is an API server. Between two reads of an operator somebody changes the policy of a VM there, and then vouches
// for its node.
type torn struct {
	client.Reader
	vm     *v1alpha1.VirtualMachine
	record *v1alpha1.VMRecord
}

func (r *torn) Get(_ context.Context, key types.NamespacedName, o client.Object, _ ...client.GetOption) error {
	switch o := o.(type) {
	case *v1alpha1.VirtualMachine:
		r.vm.DeepCopyInto(o)
	case *v1alpha1.VMRecord:
		r.record.DeepCopyInto(o)
	case *corev1.Node:
		r.vm.Spec.OnNodeLoss = v1alpha1.NodeLossWait
		*o = corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}}}
	default:
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	return nil
}

func (*torn) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// What was read of a VM before the word for its node is no answer to it: the VM stays, by the policy that it had then.
func TestPolicyBeforeTheWordForANode(t *testing.T) {
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: "ns", UID: "u1",
		Finalizers: []string{decide.FinalizerVM}}}
	vm.Spec.OnNodeLoss = v1alpha1.NodeLossRestore
	id := &nodev1.VM{Namespace: store.Kubernetes, Id: "ns.vm"}
	data, err := proto.Marshal(&nodev1.Record{Vm: id, Uid: "u1", Owner: &nodev1.Owner{Node: "a"}, Generation: 1,
		Version: 1})
	if err != nil {
		t.Fatal(err)
	}
	record := &v1alpha1.VMRecord{ObjectMeta: metav1.ObjectMeta{Name: "ns.vm"}, Record: data,
		Spec: v1alpha1.VMRecordSpec{VM: v1alpha1.RecordVM{Namespace: id.GetNamespace(), ID: id.GetId()}}}
	api := &torn{vm: vm, record: record}
	o, there, err := View{Reader: api, Engine: true}.VM(t.Context(), client.ObjectKeyFromObject(vm))
	if err != nil || !there || o.Unread != nil || !o.Fenced {
		t.Fatalf("%v, %t, %v, fenced %t", err, there, o.Unread, o.Fenced)
	}
	if next := decide.NextVM(o); next.Do == decide.OrderRecover || next.Waits != decide.ReasonNodeLost {
		t.Errorf("decided %s, waits %q", next.Do, next.Waits)
	}
}
