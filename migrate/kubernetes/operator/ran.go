package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// annotationRan of a VMRecord says how the VM ran last. The VirtualMachine of a member of a set may be deleted while
// the VM sleeps, and the pod ends with each sleep: the record is what stays.
const annotationRan = "godwit.dev/ran"

// ran is how a VM ran, as it is written down. That of a VM which had the name before is not this one's.
type ran struct {
	UID       string            `json:"uid"`
	Images    map[string]string `json:"images"` // by container
	Addresses []string          `json:"addresses,omitempty"`
	Of        types.UID         `json:"of,omitempty"` // the pod in which these were seen
	Template  string            `json:"template,omitempty"`
}

func hasRan(o *v1alpha1.VMRecord, rec *nodev1.Record) (noted ran, err error) {
	text := o.Annotations[annotationRan]
	if text == "" || rec == nil {
		return ran{}, nil
	}
	if err := json.Unmarshal([]byte(text), &noted); err != nil {
		return ran{}, fmt.Errorf("vmrecord %s: annotation %s: %w: %w", o.Name, annotationRan, err, errdefs.ErrDataLoss)
	}
	if noted.UID != rec.GetUid() {
		return ran{}, nil
	}
	return noted, nil
}

// noteRun writes it down next to the record, whose version this does not change.
func (b base) noteRun(ctx context.Context, rec *nodev1.Record, next decide.Action) error {
	text, err := json.Marshal(ran{UID: rec.GetUid(), Images: next.Images, Addresses: next.Addresses,
		Of: next.AddressesOf, Template: next.Template})
	if err != nil {
		return fmt.Errorf("encode how a VM runs: %w", err)
	}
	return b.annotateRan(ctx, rec, string(text))
}

func (b base) annotateRan(ctx context.Context, rec *nodev1.Record, text string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		annotationRan: text}}})
	if err != nil {
		return fmt.Errorf("encode how a VM runs: %w", err)
	}
	o := &v1alpha1.VMRecord{}
	o.Name = rec.GetVm().GetId()
	return ignoreAbsent(b.client.Patch(ctx, o, client.RawPatch("application/merge-patch+json", patch)))
}

// unused answers those addresses that no other pod has. A node says what addresses its pods have: one that names those
// of another pod would have the VM's next pod ask for them. The pods of nodes' networks have the nodes' addresses.
func (b base) unused(ctx context.Context, vm *v1alpha1.VirtualMachine, uid string, addresses []string) ([]string,
	error) {
	all := &corev1.PodList{} // a field selects pods by the first address of each, and by its text
	if err := b.current.List(ctx, all); err != nil {
		return nil, fmt.Errorf("list pods for their addresses: %w", err)
	}
	for i := range all.Items {
		pod := &all.Items[i]
		own := pod.Namespace == vm.Namespace && pod.Labels[pods.LabelVM] == vm.Name &&
			pod.Labels[pods.LabelRecordUID] == uid
		if own || pods.Ended(pod) || pod.DeletionTimestamp != nil {
			continue
		}
		if address := common(addresses, pod.Status.PodIPs); address != "" {
			b.events.Eventf(vm, nil, corev1.EventTypeWarning, "AddressOfAnother", "NoteRun", "the node of the VM says that it "+
				"has the address %s, which pod %s/%s has: the VM does not keep it", address, pod.Namespace, pod.Name)
			return nil, nil
		}
	}
	return addresses, nil
}

// common is an address that a pod has too, however it is written; empty: none. One that is no address is in no use.
func common(addresses []string, of []corev1.PodIP) string {
	for _, a := range addresses {
		address, err := netip.ParseAddr(a)
		if err != nil {
			continue
		}
		for _, ip := range of {
			if other, err := netip.ParseAddr(ip.IP); err == nil && other.Unmap() == address.Unmap() {
				return a
			}
		}
	}
	return ""
}

// running are the images of the pod that the VM runs in; nil: not all are known.
func running(o *decide.VM) map[string]string {
	for i := range o.Pods {
		if pod := &o.Pods[i]; pods.Names(o.Record, pod) {
			if all := pods.Images(pod); all != nil {
				return all
			}
		}
	}
	return nil
}
