package moves

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A node makes up neither VMs nor reasons without end: what the store does not know is refused, and what is told of
// others stays. A refusal holds up nothing that comes after it.
func TestOneNodeFillsNoBoard(t *testing.T) {
	ctx, st := t.Context(), storetest.NewMemory()
	members, err := cluster.Open(ctx, st, false)
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{Cluster: members, Records: controller.New(st)}
	known := &nodev1.VM{Namespace: "default", Id: "web"}
	if _, err := s.Records.Ensure(ctx, &nodev1.EnsureRequest{Vm: known}); err != nil {
		t.Fatal(err)
	}
	says := func(node string, all ...*nodev1.MoveEvent) error {
		_, err := s.Announce(controller.WithPeer(ctx, node), &nodev1.AnnounceRequest{Node: &nodev1.NodeInfo{Name: node},
			Events: all})
		return err
	}
	ended := func(vm *nodev1.VM, why string) *nodev1.MoveEvent {
		return &nodev1.MoveEvent{Type: moves.Outlived, Vm: vm, Reason: why}
	}
	if err := s.Cluster.Append(ctx, &nodev1.MoveEvent{Type: moves.Started, Vm: known, Operation: "m",
		Source: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := says("a", ended(&nodev1.VM{Namespace: "default", Id: "x"}, "it ran"),
		ended(known, "it ran")); !errdefs.IsNotFound(err) {
		t.Errorf("of a VM that is not known: %v", err)
	}
	if err := says("a", ended(&nodev1.VM{Namespace: "default"}, "it ran")); !errdefs.IsInvalidArgument(err) {
		t.Errorf("of no VM: %v", err)
	}
	if err := says("a", ended(known, strings.Repeat("x", maxReason+1))); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a long reason: %v", err)
	}
	if all := members.Events(ctx, 0, 0); len(all) != 2 || all[1].GetVm().GetId() != "web" {
		t.Fatalf("told %v", all)
	}
	full := false
	for i := 0; i <= cluster.Remembered/MaxTold; i++ {
		var all []*nodev1.MoveEvent
		for j := range MaxTold {
			all = append(all, ended(known, fmt.Sprintf("under %d", i*MaxTold+j)))
		}
		err := says("a", all...)
		if full = full || errdefs.IsResourceExhausted(err); err != nil && !errdefs.IsResourceExhausted(err) {
			t.Fatal(err)
		}
	}
	if err := s.append(ctx, &nodev1.MoveEvent{Type: moves.NoCapacity, Vm: known, Operation: "w",
		Source: "a"}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("an order that fits no node: %v", err)
	}
	if err := says("b", ended(known, "it ran")); err != nil {
		t.Errorf("another node: %v", err)
	}
	all := members.Events(ctx, 0, 0)
	if !full || len(all) != 1+maxCaused+1 || all[0].GetOperation() != "m" || all[len(all)-1].GetSource() != "b" {
		t.Errorf("refused %v; %d are remembered, the first %v, the last %v", full, len(all), all[0], all[len(all)-1])
	}
}
