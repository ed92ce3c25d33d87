package record

import (
	"fmt"
	"regexp"

	"github.com/containerd/errdefs"
)

// LabelName is the label of a container that holds its name. nerdctl made it.
const LabelName = "nerdctl/name"

var (
	snapshotName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
	hexadecimal  = regexp.MustCompile(`^[0-9a-f]+$`)
)

// CheckSnapshotName refuses what is no name of a snapshot. A name never reads as the beginning of a digest, so that
// both may stand in one place.
func CheckSnapshotName(name string) error {
	switch {
	case !snapshotName.MatchString(name):
		return fmt.Errorf("name %q of a snapshot: use 1 to 64 letters, digits, and . _ - between them, "+
			"as before-upgrade: %w", name, errdefs.ErrInvalidArgument)
	case hexadecimal.MatchString(name):
		return fmt.Errorf("name %q of a snapshot: it reads as the beginning of a digest. Use a letter after f, or a "+
			"dash: %w", name, errdefs.ErrInvalidArgument)
	}
	return nil
}

const (
	// VMNameMax is the longest name that people give a VM, in bytes: that of an id of containerd.
	VMNameMax = 76
	// VMIDMax is the longest id of a VM in the records, in bytes. That of a pod's VM has the namespace in it, and is
	// the name of an object of Kubernetes: RFC 1123.
	VMIDMax = 253
)

var (
	vmName = regexp.MustCompile(`^[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*$`)
	vmID   = regexp.MustCompile(`^[A-Za-z0-9]+(?:(?:[._]|-+)[A-Za-z0-9]+)*$`)
)

// CheckVMName refuses what is no name of a VM. A name is written as an id of containerd is.
func CheckVMName(name string) error {
	if len(name) > VMNameMax || !vmName.MatchString(name) {
		return fmt.Errorf("name %q: write letters and digits, with single . _ - between them, at most %d characters: %w",
			name, VMNameMax, errdefs.ErrInvalidArgument)
	}
	return nil
}

// CheckVMID refuses what is no id of a VM in the records. Such ids become names of files, keys and text of terminals. A
// name of Kubernetes may have several dashes in a row.
func CheckVMID(id string) error {
	if len(id) > VMIDMax || !vmID.MatchString(id) {
		return fmt.Errorf("id %q: write letters and digits, with single . _ or dashes between them, "+
			"at most %d characters: %w", id, VMIDMax, errdefs.ErrInvalidArgument)
	}
	return nil
}

// IsMember reports whether a container with these labels is one of a pod: it has no VM of its own. The label is that of
// containerd's CRI plugin (internal/cri/labels).
func IsMember(labels map[string]string) bool { return labels[criKind] == "container" }

// IsSandbox reports whether a container with these labels is the sandbox of a pod, whose VM is the pod's.
func IsSandbox(labels map[string]string) bool { return labels[criKind] == "sandbox" }

const criKind = "io.cri-containerd.kind"

// Annotations of CRI that name the pod of a sandbox (internal/cri/annotations).
const (
	PodNamespace = "io.kubernetes.cri.sandbox-namespace"
	PodName      = "io.kubernetes.cri.sandbox-name"
)
