package engine

import (
	"testing"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Which nodes a VM may come to.
func TestTakes(t *testing.T) {
	for name, tt := range map[string]struct {
		node *nodev1.NodeInfo
		is   func(error) bool
	}{
		"up":                     {&nodev1.NodeInfo{Up: true}, func(err error) bool { return err == nil }},
		"a controller with VMs":  {&nodev1.NodeInfo{Up: true, Controller: true}, func(err error) bool { return err == nil }},
		"silent":                 {&nodev1.NodeInfo{}, errdefs.IsUnavailable},
		"cordoned":               {&nodev1.NodeInfo{Up: true, Cordoned: true}, errdefs.IsFailedPrecondition},
		"controller without VMs": {&nodev1.NodeInfo{Up: true, ControllerOnly: true}, errdefs.IsFailedPrecondition},
	} {
		if err := Takes(tt.node); !tt.is(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
