package pods

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
)

// Images are those of a pod's containers, each by its digest where it has one; nil: not all are known. An image that
// was never in a registry has no digest of one, and its name stands for it.
func Images(pod *corev1.Pod) map[string]string {
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
	for _, c := range append(slices.Clone(pod.Status.InitContainerStatuses), pod.Status.ContainerStatuses...) {
		if _, ok := all[c.Name]; !ok || c.ImageID == "" {
			continue
		}
		known++
		if strings.Contains(c.ImageID, "@") {
			all[c.Name] = c.ImageID
		}
	}
	if known != len(all) {
		return nil
	}
	return all
}

// TemplateImages are those that a VM boots from, by container.
func TemplateImages(vm *v1alpha1.VirtualMachine) map[string]string {
	all := map[string]string{}
	for _, c := range append(slices.Clone(vm.Spec.Template.Spec.InitContainers), vm.Spec.Template.Spec.Containers...) {
		all[c.Name] = c.Image
	}
	return all
}
