package node

import (
	"context"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store/storetest"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// only is a node with one VM.
type only struct {
	Shims
	phase string
}

func (o only) Query(context.Context, *nodev1.VM) (*machinev1.QueryResponse, error) {
	if o.phase == "" {
		return nil, errdefs.ErrUnavailable
	}
	return &machinev1.QueryResponse{Record: o.phase, Ref: &machinev1.Ref{Operation: "m", Attempt: 2, Generation: 3}}, nil
}

// What a node has of a VM without a record, and that stands still for an operation, goes by
// force. A VM that runs does not, nor one of which that cannot be told, nor does any without
// force.
func TestForgetWithoutARecord(t *testing.T) {
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	for _, phase := range []string{"PREPARED", "OWN", "READY", ""} {
		for _, force := range []bool{false, true} {
			var released []*machinev1.ReleaseRequest
			s := &Service{Config: &config.Config{Node: "a"}, Records: controller.New(storetest.NewMemory()),
				Shims: only{phase: phase}, Release: func(_ context.Context, _ *nodev1.VM, req *machinev1.ReleaseRequest) error {
					released = append(released, req)
					return nil
				}}
			_, err := s.Forget(t.Context(), &nodev1.ForgetRequest{Vm: vm, Force: force})
			if phase == "PREPARED" && force {
				if err != nil || len(released) != 1 || released[0].GetRef().GetAttempt() != 2 {
					t.Errorf("%v, released %v", err, released)
				}
			} else if !errdefs.IsNotFound(err) || len(released) > 0 {
				t.Errorf("%q, force %v: %v, released %v", phase, force, err, released)
			}
		}
	}
}
