package tasks

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/engine"
)

// A destination of an older build refuses what it does not know of a VM, before it makes
// anything for it.
func TestOfferedSpecOfAnotherBuild(t *testing.T) {
	order := engine.Restore{Intent: record.Intent{Operation: "m",
		Stream: &machinev1.Stream{Spec: []byte(`{"version":1,"antigravity":true}`)}}}
	if sp, err := new(Client).specOf(t.Context(), order); !errdefs.IsInvalidArgument(err) ||
		!strings.Contains(err.Error(), `"antigravity"`) {
		t.Errorf("%v, %v", sp, err)
	}
}
