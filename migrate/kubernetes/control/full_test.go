package control

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"k8s.io/client-go/rest"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A VM has as many snapshots as its record takes: no more are made. It moves and sleeps all the same, and its snapshots
// can be deleted, one after the other.
func TestRecordFullOfSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, err := store.Open(&rest.Config{Host: "http://api", Transport: newMemoryAPI(), QPS: -1}, "system")
		if err != nil {
			t.Fatal(err)
		}
		records, ctx := controller.New(st), t.Context()
		vm := &nodev1.VM{Namespace: store.Kubernetes, Id: "default.vm"}
		uid := uuid.NewString()
		rec := &nodev1.Record{Vm: vm, Uid: uid, Generation: 1, Owner: &nodev1.Owner{Node: "a"}}
		add := func(n int) {
			for range n {
				i := len(rec.Snapshots)
				id := uuid.NewString()
				rec.Snapshots = append(rec.Snapshots, &nodev1.SnapshotRef{Digest: fmt.Sprintf("sha256:%064x", i),
					Repository: "registry.example/vms/" + uid, Tag: record.SnapshotTag(1, id, 1), Generation: 1, Operation: id,
					CreatedUnixNano: 1, Bytes: 1 << 30, Checkpoint: true, Node: "a", Manual: true})
			}
		}
		add(700)
		if rec, err = st.Apply(ctx, vm, 0, transition.Change{Record: rec}); err != nil {
			t.Fatal(err)
		}
		open := func(kind nodev1.Kind, end nodev1.Phase) error {
			id := uuid.NewString()
			op := &nodev1.Operation{Id: id, Kind: kind, Attempt: 1, Generation: 1, Source: "a", Managed: true,
				Repository: "registry.example/vms/" + uid, Tag: record.SnapshotTag(1, id, 1)}
			if kind == nodev1.Kind_KIND_MIGRATE {
				op.Destination = "b"
			}
			_, err := records.Open(ctx, &nodev1.OpenRequest{Vm: vm, Uid: uid, Operation: op})
			if err != nil {
				return err
			}
			for _, phase := range []nodev1.Phase{nodev1.Phase_PHASE_ABORTING} {
				if _, err := records.Advance(ctx, &nodev1.AdvanceRequest{Vm: vm, Operation: id, Attempt: 1, Generation: 1,
					Phase: phase, Reason: "by the test"}); err != nil {
					return err
				}
			}
			_, err = records.Finish(ctx, &nodev1.FinishRequest{Vm: vm, Operation: id, Attempt: 1, Generation: 1, Phase: end,
				Reason: "by the test"})
			return err
		}
		failed := nodev1.Phase_PHASE_FAILED
		if err := open(nodev1.Kind_KIND_CHECKPOINT, failed); err != nil {
			t.Fatalf("a checkpoint of a VM with 700 snapshots: %v", err)
		}
		if rec, err = records.Get(ctx, &nodev1.GetRequest{Vm: vm}); err != nil {
			t.Fatal(err)
		}
		add(300)
		rec.Name = strings.Repeat("x", 27_800) // as longer names of repositories would be
		if rec, err = st.Apply(ctx, vm, rec.GetVersion(), transition.Change{Record: rec}); err != nil {
			t.Fatalf("1000 snapshots: %v", err)
		}
		if err := open(nodev1.Kind_KIND_CHECKPOINT, failed); !errdefs.IsResourceExhausted(err) ||
			!strings.Contains(err.Error(), "1000 snapshots") {
			t.Errorf("a checkpoint in addition: %v", err)
		}
		for _, kind := range []nodev1.Kind{nodev1.Kind_KIND_HIBERNATE, nodev1.Kind_KIND_MIGRATE} {
			if err := open(kind, failed); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
		const deleted = 100
		for _, ref := range rec.GetSnapshots()[:deleted] {
			if _, err := records.Trim(ctx, &nodev1.TrimRequest{Vm: vm, Uid: uid, Digest: ref.GetDigest(),
				Ordered: true}); err != nil {
				t.Fatalf("trim: %v", err)
			}
			if _, err := records.Clear(ctx, &nodev1.ClearRequest{Vm: vm, Repository: ref.GetRepository(),
				Digest: ref.GetDigest()}); err != nil {
				t.Fatalf("clear: %v", err)
			}
		}
		if rec, err = records.Get(ctx, &nodev1.GetRequest{Vm: vm}); err != nil || len(rec.GetSnapshots()) != 1000-deleted {
			t.Errorf("%d snapshots, %v", len(rec.GetSnapshots()), err)
		}
		if err := open(nodev1.Kind_KIND_CHECKPOINT, failed); err != nil {
			t.Errorf("a checkpoint when some are deleted: %v", err)
		}
	})
}
