package bundle

import (
	"errors"
	"fmt"
	"os"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
)

// VMName answers the name that the VM of a task has, from the task's bundle: containerd's id, unless a pod has a name
// of its own. The ids of sandboxes are made by chance, and the record of such a VM is found by the name.
func VMName(dir, id string) (string, error) {
	_, annotations, err := HooksOf(dir)
	if errors.Is(err, os.ErrNotExist) {
		return id, nil
	}
	if err != nil {
		return "", err
	}
	c, err := readCRI(annotations)
	if err != nil || c.role != roleSandbox {
		return id, err
	}
	return vmName(c, annotations[spec.AnnotationVM], id)
}

// vmName has the pod's namespace first: pods of two namespaces may have one name. No namespace has a dot in it.
func vmName(c cri, given, id string) (string, error) {
	if given == "" {
		return id, nil
	}
	name := c.namespace + "." + given
	if err := record.CheckVMName(name); err != nil {
		return "", fmt.Errorf("annotation %s: with the namespace of the pod before it: %w", spec.AnnotationVM, err)
	}
	return name, nil
}
