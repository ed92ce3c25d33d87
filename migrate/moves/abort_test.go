package moves

import (
	"context"
	"testing"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/migrate/controller"
)

// A checkpoint is called off by the node that makes it, or by the controller's host, until it is listed. Other kinds
// but moves are not.
func TestAbortOfACheckpoint(t *testing.T) {
	for kind, want := range map[nodev1.Kind]map[string]func(error) bool{
		nodev1.Kind_KIND_CHECKPOINT: {"": isNil, "a": isNil, "b": errdefs.IsPermissionDenied},
		nodev1.Kind_KIND_HIBERNATE:  {"": errdefs.IsInvalidArgument, "a": errdefs.IsInvalidArgument},
	} {
		st, members := newCluster(t)
		records, vm, ctx := controller.New(st), &nodev1.VM{Namespace: "default", Id: "web"}, t.Context()
		s := &Service{Records: records, Engine: orders{records}, Cluster: members}
		if _, err := records.Ensure(ctx, &nodev1.EnsureRequest{Vm: vm}); err != nil {
			t.Fatal(err)
		}
		if _, err := records.Own(ctx, &nodev1.OwnRequest{Vm: vm, Node: "a"}); err != nil {
			t.Fatal(err)
		}
		open := &nodev1.Operation{Id: "c", Kind: kind, Attempt: 1, Source: "a", Generation: 1}
		if _, err := records.Open(ctx, &nodev1.OpenRequest{Vm: vm, Operation: open}); err != nil {
			t.Fatal(err)
		}
		for node, as := range want {
			by := ctx
			if node != "" {
				by = controller.WithPeer(context.WithoutCancel(ctx), node)
			}
			if _, err := s.Abort(by, &nodev1.AbortRequest{Operation: "c"}); !as(err) {
				t.Errorf("%s called off by %q: %v", kind, node, err)
			}
		}
	}
}

func isNil(err error) bool { return err == nil }
