package moves

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// orders is an engine that takes every order.
type orders struct{ records nodev1.RecordsService }

func (o orders) Migrate(_ context.Context, req *nodev1.MigrateRequest) (*nodev1.StatusResponse, error) {
	return &nodev1.StatusResponse{Operation: &nodev1.Operation{Id: req.GetOperation()}}, nil
}

func (o orders) Status(ctx context.Context, id string) (*nodev1.StatusResponse, error) {
	resp, err := o.records.Operation(ctx, &nodev1.OperationRequest{Id: id})
	return &nodev1.StatusResponse{Operation: resp.GetOperation()}, err
}

func (o orders) Cancel(_ context.Context, id, _ string) (*nodev1.StatusResponse, error) {
	return &nodev1.StatusResponse{Operation: &nodev1.Operation{Id: id}}, nil
}

// newCluster is a store, and the nodes in it.
func newCluster(t *testing.T) (*store.Bolt, *cluster.State) {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	members, err := cluster.Open(t.Context(), st, false)
	if err != nil {
		t.Fatal(err)
	}
	return st, members
}

// A node orders what concerns itself, and the controller's own host anything.
func TestWhoMayOrder(t *testing.T) {
	st, members := newCluster(t)
	records, vm, ctx := controller.New(st), &nodev1.VM{Namespace: "default", Id: "web"}, t.Context()
	s := &Service{Records: records, Engine: orders{records}, Cluster: members}
	if _, err := records.Ensure(ctx, &nodev1.EnsureRequest{Vm: vm}); err != nil {
		t.Fatal(err)
	}
	if _, err := records.Own(ctx, &nodev1.OwnRequest{Vm: vm, Node: "a"}); err != nil {
		t.Fatal(err)
	}
	open := &nodev1.Operation{Id: "m", Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 1, Source: "a", Destination: "b",
		Generation: 1}
	if _, err := records.Open(ctx, &nodev1.OpenRequest{Vm: vm, Operation: open}); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(context.Context) error{
		"migrate": func(ctx context.Context) error {
			_, err := s.Migrate(ctx, &nodev1.MigrateRequest{Vm: vm, To: "b"})
			return err
		},
		"the known": func(ctx context.Context) error {
			_, err := s.Migrate(ctx, &nodev1.MigrateRequest{Vm: vm, To: "c", Operation: "m"})
			return err
		},
		"abort": func(ctx context.Context) error {
			_, err := s.Abort(ctx, &nodev1.AbortRequest{Operation: "m"})
			return err
		},
	} {
		for node, refused := range map[string]bool{"a": false, "b": false, "c": true} {
			if err := call(controller.WithPeer(ctx, node)); errdefs.IsPermissionDenied(err) != refused {
				t.Errorf("%s by node %s: %v", name, node, err)
			}
		}
		if err := call(ctx); err != nil {
			t.Errorf("%s by the controller's host: %v", name, err)
		}
	}
	for node, refused := range map[string]bool{"a": true, "b": false} { // where output goes says who gets it, or the host
		for _, uri := range []string{"file:///etc/cron.d/x", "binary:///bin/sh"} {
			_, err := s.Migrate(controller.WithPeer(ctx, node), &nodev1.MigrateRequest{Vm: vm, To: "b", Stdio: uri})
			if errdefs.IsPermissionDenied(err) != refused || refused && !strings.Contains(err.Error(), "stdio") {
				t.Errorf("%s by node %s: %v", uri, node, err)
			}
		}
	}
	s.Placer = &placer{}
	if _, err := s.Migrate(controller.WithPeer(ctx, "b"), &nodev1.MigrateRequest{Vm: vm, To: "b",
		Stdio: "binary:///bin/sh"}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("by a node to which the move is placed, or not: %v", err)
	}
	s.Placer = nil
	for who, ctx := range map[string]context.Context{"the host": ctx, "its source": controller.WithPeer(ctx, "a")} {
		if _, err := s.Migrate(ctx, &nodev1.MigrateRequest{Vm: vm, To: "b", Stdio: map[string]string{"the host": "file:///x",
			"its source": "null://"}[who]}); err != nil {
			t.Errorf("by %s: %v", who, err)
		}
	}
	if _, err := s.Announce(controller.WithPeer(ctx, "a"),
		&nodev1.AnnounceRequest{Node: &nodev1.NodeInfo{Name: "b"}}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a node speaks for another: %v", err)
	}
	for _, says := range []*nodev1.NodeInfo{{Name: "a", Controller: true}, {Name: "a", ControllerOnly: true}} {
		if _, err := s.Announce(controller.WithPeer(ctx, "a"), &nodev1.AnnounceRequest{Node: says}); err != nil {
			t.Fatal(err)
		}
		for _, n := range members.Nodes() {
			if n.GetController() || n.GetControllerOnly() {
				t.Errorf("a node makes itself a controller: %v", n)
			}
		}
	}
	if _, err := s.Drain(controller.WithPeer(ctx, "a"), &nodev1.DrainRequest{Node: "b"}); !errdefs.IsPermissionDenied(
		err) {
		t.Errorf("a node drains another: %v", err)
	}
	if _, err := s.Recover(controller.WithPeer(ctx, "c"), &nodev1.RecoverRequest{Vm: vm, To: "b",
		Fenced: true}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a node recovers for another: %v", err)
	}
	if _, err := s.Recover(ctx, &nodev1.RecoverRequest{Vm: vm, To: "c", Fenced: true}); !errdefs.IsNotFound(err) {
		t.Errorf("a VM without a snapshot is recovered: %v", err)
	}
}

// What a node that was called lost has ended is among the events, once, however often the node says so. It speaks
// of itself only, and for no other node.
func TestEndAfterLossIsTold(t *testing.T) {
	st, members := newCluster(t)
	s, a := &Service{Cluster: members, Records: controller.New(st)}, controller.WithPeer(t.Context(), "a")
	if _, err := s.Records.Ensure(t.Context(),
		&nodev1.EnsureRequest{Vm: &nodev1.VM{Namespace: "default", Id: "web"}}); err != nil {
		t.Fatal(err)
	}
	said := func(kind, why string) *nodev1.MoveEvent {
		return &nodev1.MoveEvent{Type: kind, Vm: &nodev1.VM{Namespace: "default", Id: "web"}, Reason: why, Operation: "m",
			Source: "b", Id: 9}
	}
	announce := func(all ...*nodev1.MoveEvent) error {
		_, err := s.Announce(a, &nodev1.AnnounceRequest{Node: &nodev1.NodeInfo{Name: "a"}, Events: all})
		return err
	}
	for range 2 { // the first answer is lost
		if err := announce(said(moves.Outlived, "under 1"), said(moves.Outlived, "under 3")); err != nil {
			t.Fatal(err)
		}
	}
	if err := announce(said(moves.Succeeded, "")); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a node tells how a move ended: %v", err)
	}
	if err := announce(make([]*nodev1.MoveEvent, MaxTold+1)...); !errdefs.IsInvalidArgument(err) {
		t.Errorf("too many: %v", err)
	}
	all := members.Events(t.Context(), 0, 0)
	if len(all) != 2 || all[0].GetReason() != "under 1" || all[1].GetReason() != "under 3" {
		t.Fatalf("told %v", all)
	}
	if ev := all[0]; ev.GetSource() != "a" || ev.GetOperation() != "" || ev.GetId() != 1 || ev.GetVm().GetId() != "web" {
		t.Errorf("told %v", ev)
	}
	if len(members.Nodes()) != 1 {
		t.Error("its heartbeat does not count")
	}
}
