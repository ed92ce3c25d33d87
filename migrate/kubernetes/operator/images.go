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

// annotationImages of a VMRecord has the images of the VM's containers. The VirtualMachine of a member of a set may be
// deleted while the VM sleeps, and the pod ends with each sleep: the record is what stays.
const annotationImages = "godwit.dev/images"

// images as they are written down. Those of a VM that had the name before are not this one's.
type images struct {
	UID        string            `json:"uid"`
	Containers map[string]string `json:"containers"`
}

func notedImages(o *v1alpha1.VMRecord, rec *nodev1.Record) (map[string]string, error) {
	text := o.Annotations[annotationImages]
	if text == "" || rec == nil {
		return nil, nil
	}
	noted := images{}
	if err := json.Unmarshal([]byte(text), &noted); err != nil {
		return nil, fmt.Errorf("vmrecord %s: annotation %s: %w: %w", o.Name, annotationImages, err, errdefs.ErrDataLoss)
	}
	if noted.UID != rec.GetUid() {
		return nil, nil
	}
	return noted.Containers, nil
}

// noteImages writes them down next to the record, whose version this does not change.
func (b base) noteImages(ctx context.Context, rec *nodev1.Record, all map[string]string) error {
	text, err := json.Marshal(images{UID: rec.GetUid(), Containers: all})
	if err != nil {
		return fmt.Errorf("encode images: %w", err)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		annotationImages: string(text)}}})
	if err != nil {
		return fmt.Errorf("encode images: %w", err)
	}
	o := &v1alpha1.VMRecord{}
	o.Name = rec.GetVm().GetId()
	return store404(b.client.Patch(ctx, o, client.RawPatch("application/merge-patch+json", patch)))
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
