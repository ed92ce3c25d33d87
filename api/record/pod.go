package record

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
)

// PodVM is the id of a pod's VM by the annotations of its sandbox. The pod's namespace comes first: pods of two
// namespaces may have one name. Empty: the pod has no name for its VM, and the sandbox's id is the VM's.
func PodVM(annotations map[string]string) string {
	given := annotations[spec.AnnotationVM]
	if given == "" {
		return ""
	}
	return annotations[PodNamespace] + "." + given
}

// SandboxVM is the id of the VM of a container, by what containerd has of it: its id, its labels and its OCI spec. It
// is the container's id, but for the sandbox of a pod that has a name for its VM.
func SandboxVM(id string, labels map[string]string, oci []byte) string {
	if !IsSandbox(labels) {
		return id
	}
	if name := PodVM(Annotations(oci)); name != "" {
		return name
	}
	return id
}

// Annotations are those of an OCI spec in JSON; nil: they cannot be read.
func Annotations(oci []byte) map[string]string {
	var s struct{ Annotations map[string]string }
	if json.Unmarshal(oci, &s) != nil {
		return nil
	}
	return s.Annotations
}

// SandboxFilter is the filter of containerd that matches sandboxes of pods alone.
const SandboxFilter = `labels."` + criKind + `"==sandbox`

// MayBePod reports whether a VM's id may be the one that PodVM makes. It has the pod's namespace, and a dot.
func MayBePod(id string) bool { return strings.Contains(id, ".") }

// ShimSandboxer is what containerd says of a sandbox that a shim made by its sandbox API. It has no container.
const ShimSandboxer = "shim"

// sandboxMetadata is the extension of such a sandbox in which the CRI plugin keeps what it knows.
const sandboxMetadata = "metadata"

// SandboxPod reads the extensions of the sandbox with that id: the id of the pod's VM, and NAMESPACE/NAME of the pod,
// which is empty if CRI keeps nothing.
func SandboxPod[E interface{ GetValue() []byte }](id string, extensions map[string]E) (vm, pod string, err error) {
	var m struct {
		Metadata struct {
			Config struct {
				Metadata    struct{ Namespace, Name string }
				Annotations map[string]string
			}
		}
	}
	kept, ok := extensions[sandboxMetadata]
	if !ok || len(kept.GetValue()) == 0 {
		return id, "", nil
	}
	if err := json.Unmarshal(kept.GetValue(), &m); err != nil {
		return "", "", fmt.Errorf("read what CRI keeps of sandbox %s: %w: %w", id, err, errdefs.ErrDataLoss)
	}
	config := m.Metadata.Config
	vm = PodVM(map[string]string{PodNamespace: config.Metadata.Namespace,
		spec.AnnotationVM: config.Annotations[spec.AnnotationVM]})
	if config.Metadata.Name != "" {
		pod = config.Metadata.Namespace + "/" + config.Metadata.Name
	}
	return cmp.Or(vm, id), pod, nil
}
