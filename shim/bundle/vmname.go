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
	return vmName(annotations, id)
}

// vmName is the name by the annotations of a sandbox. No namespace of Kubernetes has a dot in it.
func vmName(annotations map[string]string, id string) (string, error) {
	name := record.PodVM(annotations)
	if name == "" {
		return id, nil
	}
	if err := record.CheckVMID(name); err != nil {
		return "", fmt.Errorf("annotation %s: with the namespace of the pod before it: %w", spec.AnnotationVM, err)
	}
	return name, nil
}
