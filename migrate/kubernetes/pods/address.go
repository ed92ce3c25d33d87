package pods

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/util/validation"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
)

// AddressAnnotation is one by which the network of the nodes gives a pod the addresses that it asks for.
type AddressAnnotation struct {
	Name string
	List bool // the addresses are a list of JSON; else they have commas between
}

// ParseAddressAnnotation reads NAME=json or NAME=text.
func ParseAddressAnnotation(text string) (a AddressAnnotation, err error) {
	name, form, _ := strings.Cut(text, "=")
	problems := validation.IsQualifiedName(strings.ToLower(name))
	if len(problems) > 0 || form != "json" && form != "text" {
		return a, fmt.Errorf("%q is no NAME=json or NAME=text: %w", text, errdefs.ErrInvalidArgument)
	}
	return AddressAnnotation{Name: name, List: form == "json"}, nil
}

func (a AddressAnnotation) value(addresses []string) string {
	if !a.List {
		return strings.Join(addresses, ",")
	}
	text, _ := json.Marshal(addresses) // of strings it never fails
	return string(text)
}

// keep has the pod of a VM that keeps its addresses ask the network for them. The shim refuses the VM where it gets
// others. A VM that boots has none yet: the template may ask for some.
func keep(annotations map[string]string, in Input, intent Intent) {
	delete(annotations, spec.AnnotationNetwork)
	if in.VM.Spec.Network != v1alpha1.NetworkKeep {
		return
	}
	annotations[spec.AnnotationNetwork] = spec.NetworkKeep
	if intent == Boot || len(in.Addresses) == 0 {
		return
	}
	for _, a := range in.Ask {
		annotations[a.Name] = a.value(in.Addresses)
	}
}
