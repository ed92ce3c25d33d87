package record

import (
	"encoding/json"
	"strings"

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
