package controller_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// checkpointed lists one more snapshot of a VM that runs.
func checkpointed(t *testing.T, c nodev1.RecordsService, vm *nodev1.VM, digest string) {
	t.Helper()
	ctx, id := t.Context(), "c-"+digest[7:]+"-"+vm.GetId()
	rec, err := c.Get(ctx, &nodev1.GetRequest{Vm: vm})
	if err != nil {
		t.Fatal(err)
	}
	g := rec.GetGeneration()
	for _, step := range []func() error{
		func() error {
			_, err := c.Open(ctx, &nodev1.OpenRequest{Vm: vm, Operation: &nodev1.Operation{Id: id, Attempt: 1, Tag: "t",
				Kind: nodev1.Kind_KIND_CHECKPOINT, Source: "src", Generation: g, Repository: "r/" + rec.GetUid()}})
			return err
		},
		func() error {
			_, err := c.Advance(ctx, &nodev1.AdvanceRequest{Vm: vm, Operation: id, Attempt: 1, Generation: g,
				Phase: nodev1.Phase_PHASE_SWITCHING, Digest: digest})
			return err
		},
		func() error {
			_, err := c.Commit(ctx, &nodev1.CommitRequest{Vm: vm, Operation: id, Attempt: 1, Generation: g,
				Owner:   &nodev1.Owner{Node: "src"},
				Receipt: record.Receipt{Operation: id, Attempt: 1, Generation: g, Digest: digest}.String()})
			return err
		},
		func() error {
			_, err := c.Advance(ctx, &nodev1.AdvanceRequest{Vm: vm, Operation: id, Attempt: 1, Generation: g,
				Phase: nodev1.Phase_PHASE_CLEANING})
			return err
		},
		func() error {
			_, err := c.Finish(ctx, &nodev1.FinishRequest{Vm: vm, Operation: id, Attempt: 1, Generation: g,
				Phase: nodev1.Phase_PHASE_SUCCEEDED})
			return err
		},
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
}

// Many writers at once pin, unpin, name and trim one snapshot: once a pin is answered, no trim takes the snapshot, and
// what was trimmed is not pinned. Of those who want one name for two snapshots, one gets it.
func TestPinsRace(t *testing.T) {
	socket := serve(t)
	local := dial(t, socket)
	clients := []*record.Client{dial(t, socket), dial(t, socket), dial(t, socket), dial(t, socket)}
	ctx, yes := t.Context(), true
	for round := range 20 {
		name := fmt.Sprint("web-", round)
		seen := asleep(t, local, name, "sha256:aa")
		if err := wake(t, local, seen, "src", func() {}); err != nil {
			t.Fatal(err)
		}
		checkpointed(t, local, seen.GetVm(), "sha256:bb")
		checkpointed(t, local, seen.GetVm(), "sha256:cc")
		var all sync.WaitGroup
		var pinned, trimmed error
		named := make([]error, 2)
		all.Go(func() {
			_, pinned = clients[0].Pin(ctx, &nodev1.PinRequest{Vm: seen.GetVm(), Digest: "sha256:bb", Pinned: &yes})
		})
		all.Go(func() {
			_, trimmed = clients[1].Trim(ctx, &nodev1.TrimRequest{Vm: seen.GetVm(), Digest: "sha256:bb", Ordered: true})
		})
		for i, digest := range []string{"sha256:bb", "sha256:cc"} {
			all.Go(func() {
				called := "before-upgrade"
				_, named[i] = clients[2+i].Pin(ctx, &nodev1.PinRequest{Vm: seen.GetVm(), Digest: digest, Name: &called})
			})
		}
		all.Wait()
		rec, err := local.Get(ctx, &nodev1.GetRequest{Vm: seen.GetVm()})
		if err != nil {
			t.Fatal(err)
		}
		listed, names := false, 0
		for _, ref := range rec.GetSnapshots() {
			listed = listed || ref.GetDigest() == "sha256:bb" && ref.GetPinned()
			if ref.GetName() != "" {
				names++
			}
		}
		if (pinned == nil) == (trimmed == nil) || listed != (pinned == nil) ||
			pinned != nil && !errdefs.IsNotFound(pinned) ||
			trimmed != nil && !errdefs.IsFailedPrecondition(trimmed) {
			t.Fatalf("round %d: pin: %v, trim: %v, record %v", round, pinned, trimmed, rec)
		}
		if names > 1 || named[0] != nil && named[1] != nil {
			t.Fatalf("round %d: names: %v, record %v", round, named, rec)
		}
	}
}
