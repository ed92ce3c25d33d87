package pods_test

import (
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/kubernetes/pods"
)

func TestParseAddressAnnotation(t *testing.T) {
	for text, want := range map[string]pods.AddressAnnotation{
		"cni.projectcalico.org/ipAddrs=json": {Name: "cni.projectcalico.org/ipAddrs", List: true},
		"ovn.kubernetes.io/ip_address=text":  {Name: "ovn.kubernetes.io/ip_address"},
		"":                                   {}, "=json": {}, "a/b": {}, "a/b=": {}, "a/b=yaml": {}, "a b=json": {},
		"a/b/c=text": {},
	} {
		got, err := pods.ParseAddressAnnotation(text)
		if got != want || (err == nil) != (want.Name != "") || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}
