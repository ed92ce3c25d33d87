package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
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
	text, err := json.Marshal(ran{UID: rec.GetUid(), Images: next.Images, Addresses: next.Addresses})
	if err != nil {
		return fmt.Errorf("encode how a VM runs: %w", err)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		annotationRan: string(text)}}})
	if err != nil {
		return fmt.Errorf("encode how a VM runs: %w", err)
	}
	o := &v1alpha1.VMRecord{}
	o.Name = rec.GetVm().GetId()
	return ignoreAbsent(b.client.Patch(ctx, o, client.RawPatch("application/merge-patch+json", patch)))
}

// running are the images of the pod that the VM runs in, each by its digest where it has one; nil: not all are known.
// An image that was never in a registry has no digest of one, and its name stands for it.
func running(o *decide.VM) map[string]string {
	for i := range o.Pods {
		pod := &o.Pods[i]
		if !pods.Names(o.Record, pod) {
			continue
		}
		all := map[string]string{}
		for _, c := range pod.Spec.InitContainers {
			if c.RestartPolicy != nil { // a sidecar
				all[c.Name] = c.Image
			}
		}
		for _, c := range pod.Spec.Containers {
			all[c.Name] = c.Image
		}
		known := 0
		for _, c := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
			if _, ok := all[c.Name]; !ok || c.ImageID == "" {
				continue
			}
			known++
			if strings.Contains(c.ImageID, "@") {
				all[c.Name] = c.ImageID
			}
		}
		if known == len(all) {
			return all
		}
	}
	return nil
}
