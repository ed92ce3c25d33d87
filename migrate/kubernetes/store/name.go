package store

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Kubernetes is the namespace of containerd that VMs of Kubernetes are in.
const Kubernetes = "k8s.io"

// NameOf is the object that a VM's name in the records stands for, a VirtualMachine or a Sandbox's VM; false: it stands
// for none. A namespace has no dot.
func NameOf(vm *nodev1.VM) (types.NamespacedName, bool) {
	namespace, name, ok := strings.Cut(vm.GetId(), ".")
	return types.NamespacedName{Namespace: namespace, Name: name}, ok && vm.GetNamespace() == Kubernetes
}

// encoding keeps the order of what it encodes, and has no dot.
var encoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// objectName is that of a VM's record: NAMESPACE.NAME as it is. What is not of Kubernetes, or is no such name, is
// encoded: without a dot, so that no two VMs have one name.
func objectName(vm *nodev1.VM) (string, error) {
	if vm.GetNamespace() == Kubernetes && strings.Contains(vm.GetId(), ".") &&
		len(validation.IsDNS1123Subdomain(vm.GetId())) == 0 {
		return vm.GetId(), nil
	}
	name := encoding.EncodeToString([]byte(vm.GetNamespace() + "\x00" + vm.GetId()))
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return "", fmt.Errorf("the name of VM %s/%s is too long for Kubernetes: %w", vm.GetNamespace(), vm.GetId(),
			errdefs.ErrInvalidArgument)
	}
	return name, nil
}

// key orders VMs.
func key(vm *nodev1.VM) string { return vm.GetNamespace() + "\x00" + vm.GetId() }

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:20])
}

const (
	// ofOperation comes before an operation's id in the key of a label: by it a record is found.
	ofOperation = "op.godwit.dev/"
	// owes labels what has deletions to do.
	owes = "godwit.dev/owes"
	// owedToo is its value where there is a record as well. Older builds have written "true" there too.
	owedToo = "too"
	// ofNote labels a note with its kind.
	ofNote = "godwit.dev/note"
)

// operationLabel is the key of the label for an operation: its id, or a hash where that is no key. Who finds an object
// by it looks for the id in the object.
func operationLabel(id string) string {
	if len(validation.IsQualifiedName(ofOperation+id)) > 0 {
		id = hash(id)
	}
	return ofOperation + id
}
