package record

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// TestIDsOfPods: the VM of a pod has an id in the records, in whatever namespace the pod is. containerd's ids, and the
// names that people give, are shorter.
func TestIDsOfPods(t *testing.T) {
	const uid = "0d7b1e1c-5a55-4c7d-9c1e-6f0a7d2b9a11"
	longest := strings.Repeat("n", 63) + ".sbx-" + uid
	for _, id := range []string{longest, "team--a.web", "xn--4ca.a.b"} {
		if err := CheckVMID(id); err != nil {
			t.Error(err)
		}
	}
	for _, id := range []string{"", strings.Repeat("n", VMIDMax+1), "a/b", "..", "a..b", "-a", "a-", "a\x1b"} {
		if err := CheckVMID(id); !errdefs.IsInvalidArgument(err) {
			t.Errorf("id %q: %v, want invalid argument", id, err)
		}
	}
	if err := CheckVMName(longest); !errdefs.IsInvalidArgument(err) {
		t.Errorf("name: %v, want invalid argument", err)
	}
}
