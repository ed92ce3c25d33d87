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

// Snapshots that stay for their VMSnapshots wait for nothing: however many the VMs of a name have left, the next one
// boots and sleeps. It gets no more of them, and the refusal says what to delete.
func TestNameFullOfHeldSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, err := store.Open(&rest.Config{Host: "http://api", Transport: newMemoryAPI(), QPS: -1}, "system")
		if err != nil {
			t.Fatal(err)
		}
		records, ctx := controller.New(st), t.Context()
		vm, uid := &nodev1.VM{Namespace: store.Kubernetes, Id: "default.vm"}, uuid.NewString()
		rec := &nodev1.Record{Vm: vm, Uid: uid, Generation: 1, Owner: &nodev1.Owner{Node: "a"}}
		var named []string
		for i := range 600 {
			named = append(named, uuid.NewString())
			rec.Snapshots = append(rec.Snapshots, &nodev1.SnapshotRef{Digest: fmt.Sprintf("sha256:%064x", i),
				Repository: "r/" + uid, Generation: 1, Operation: named[i], Manual: true})
		}
		rec.Owner = &nodev1.Owner{Digest: rec.Snapshots[0].Digest}
		if rec, err = st.Apply(ctx, vm, 0, transition.Change{Record: rec}); err != nil {
			t.Fatal(err)
		}
		if _, err := records.Remove(ctx, &nodev1.RemoveRequest{Vm: vm, Uid: uid, Force: true, DropSnapshots: true,
			Hold: named, Version: rec.GetVersion()}); err != nil {
			t.Fatal(err)
		}
		uid = uuid.NewString()
		if _, err := records.Ensure(ctx, &nodev1.EnsureRequest{Vm: vm, Uid: uid}); err != nil {
			t.Fatalf("the next VM of that name: %v", err)
		}
		if _, err := records.Own(ctx, &nodev1.OwnRequest{Vm: vm, Node: "a", Uid: uid}); err != nil {
			t.Fatalf("it boots: %v", err)
		}
		open := func(kind nodev1.Kind, manual bool) error {
			rec, err := records.Get(ctx, &nodev1.GetRequest{Vm: vm})
			if err != nil {
				return err
			}
			id := uuid.NewString()
			if _, err := records.Open(ctx, &nodev1.OpenRequest{Vm: vm, Uid: uid, Operation: &nodev1.Operation{Id: id,
				Kind: kind, Attempt: 1, Generation: rec.GetGeneration(), Source: "a", Managed: true, Manual: manual,
				Repository: "r/" + uid, Tag: record.SnapshotTag(rec.GetGeneration(), id, 1)}}); err != nil {
				return err
			}
			if _, err := records.Advance(ctx, &nodev1.AdvanceRequest{Vm: vm, Operation: id, Attempt: 1,
				Generation: rec.GetGeneration(), Phase: nodev1.Phase_PHASE_ABORTING, Reason: "by the test"}); err != nil {
				return err
			}
			_, err = records.Finish(ctx, &nodev1.FinishRequest{Vm: vm, Operation: id, Attempt: 1,
				Generation: rec.GetGeneration(), Phase: nodev1.Phase_PHASE_FAILED, Reason: "by the test"})
			return err
		}
		if err := open(nodev1.Kind_KIND_HIBERNATE, false); err != nil {
			t.Errorf("it sleeps: %v", err)
		}
		if err := open(nodev1.Kind_KIND_CHECKPOINT, false); err != nil {
			t.Errorf("a checkpoint that no VMSnapshot has ordered: %v", err)
		}
		if err := open(nodev1.Kind_KIND_CHECKPOINT, true); !errdefs.IsResourceExhausted(err) ||
			!strings.Contains(err.Error(), "delete VMSnapshots") {
			t.Errorf("one more VMSnapshot: %v", err)
		}
	})
}
