package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func elsewhere(rec *nodev1.Record, id, prefix, uid string) *nodev1.OpenRequest {
	req := hibernate(rec, "src", prefix+"/"+uid)
	req.Operation.Id, req.Operation.Kind, req.Operation.Prefix = id, nodev1.Kind_KIND_CHECKPOINT, prefix
	return req
}

// A node puts a snapshot where the record says, or where the controller has ordered this checkpoint of this node.
func TestPlaceThatIsGiven(t *testing.T) {
	policy := controller.Policy{Repositories: []string{"reg/vms"}}
	policy.Places = func(_ context.Context, _ *nodev1.Record, op *nodev1.Operation, node string) error {
		if op.GetId() == "ordered" && op.GetPrefix() == "reg.example/gold" && node == "src" {
			return nil
		}
		return fmt.Errorf("not ordered: %w", errdefs.ErrPermissionDenied)
	}
	mine := controller.WithPeer(t.Context(), "src")
	for name, test := range map[string]struct {
		places     bool
		id, prefix string
		foreign    bool
		want       func(error) bool
	}{
		"the record's":            {true, "own", "reg.example/class", false, nil},
		"ordered":                 {true, "ordered", "reg.example/gold", false, nil},
		"another order":           {true, "other", "reg.example/gold", false, errdefs.IsPermissionDenied},
		"another prefix":          {true, "ordered", "reg.example/other", false, errdefs.IsPermissionDenied},
		"no orders":               {false, "ordered", "reg.example/gold", false, errdefs.IsPermissionDenied},
		"another VM's repository": {true, "ordered", "reg.example/gold", true, errdefs.IsInvalidArgument},
		"a directory":             {true, "ordered", "oci-layout:/etc", false, errdefs.IsInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			under := policy
			if !test.places {
				under.Places = nil
			}
			s := controller.New(storetest.NewMemory()).Under(under)
			rec, err := s.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vmOf("web"), Uid: uuid.NewString(),
				Prefix: "reg.example/class"})
			if err == nil {
				rec, err = s.Own(mine, &nodev1.OwnRequest{Vm: vmOf("web"), Node: "src", Generation: rec.GetGeneration()})
			}
			if err != nil {
				t.Fatal(err)
			}
			uid := rec.GetUid()
			if test.foreign {
				uid = uuid.NewString()
			}
			_, err = s.Open(mine, elsewhere(rec, test.id, test.prefix, uid))
			if test.want == nil && err != nil || test.want != nil && !test.want(err) {
				t.Error(err)
			}
		})
	}
}

// snapshotAt lists a snapshot that lies below prefix.
func snapshotAt(ctx context.Context, s *controller.Service, rec *nodev1.Record, prefix string) (*nodev1.Record,
	error) {
	id := strings.TrimPrefix(prefix, "reg.example/")
	rec, err := s.Open(ctx, elsewhere(rec, id, prefix, rec.GetUid()))
	step := func(phase nodev1.Phase, digest string) {
		if err == nil {
			rec, err = s.Advance(ctx, &nodev1.AdvanceRequest{Vm: rec.GetVm(), Operation: id, Attempt: 1,
				Generation: rec.GetGeneration(), Phase: phase, Digest: digest})
		}
	}
	step(nodev1.Phase_PHASE_TRANSFERRING, "")
	receipt := record.Receipt{Operation: id, Attempt: 1, Generation: rec.GetGeneration(), Digest: "sha256:" + id}
	step(nodev1.Phase_PHASE_SWITCHING, receipt.Digest)
	if err == nil {
		rec, err = s.Commit(ctx, &nodev1.CommitRequest{Vm: rec.GetVm(), Operation: id, Attempt: 1,
			Generation: rec.GetGeneration(), Owner: rec.GetOwner(), Receipt: receipt.String()})
	}
	step(nodev1.Phase_PHASE_CLEANING, "")
	if err == nil {
		rec, err = s.Finish(ctx, &nodev1.FinishRequest{Vm: rec.GetVm(), Operation: id, Attempt: 1,
			Generation: rec.GetGeneration(), Phase: nodev1.Phase_PHASE_SUCCEEDED})
	}
	return rec, err
}

// A place that the record or an order gave to one VM is no place of another's, also after the controller began anew.
func TestPlaceOfAnother(t *testing.T) {
	st := storetest.NewMemory()
	policy := controller.Policy{Repositories: []string{"reg/vms"}, Places: func(context.Context, *nodev1.Record,
		*nodev1.Operation, string) error {
		return nil
	}}
	s, mine := controller.New(st).Under(policy), controller.WithPeer(t.Context(), "src")
	rec, err := s.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vmOf("web"), Uid: uuid.NewString(),
		Prefix: "reg.example/class"})
	if err == nil {
		rec, err = s.Own(mine, &nodev1.OwnRequest{Vm: vmOf("web"), Node: "src", Generation: rec.GetGeneration()})
	}
	for _, prefix := range []string{"reg.example/gold", "reg.example/class"} {
		if err == nil {
			rec, err = snapshotAt(mine, s, rec, prefix)
		}
	}
	if err != nil || len(rec.GetSnapshots()) != 2 {
		t.Fatal(rec.GetSnapshots(), err)
	}
	again := controller.New(st).Under(policy)
	plain := owned(t, again, "src", "plain")
	for _, prefix := range []string{"reg.example/gold", "reg.example/class"} {
		_, err := again.Open(mine, hibernate(plain, "src", prefix+"/"+plain.GetUid()))
		if !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", prefix, err)
		}
	}
}

// Without an order that says so, a hibernate goes to the record's place, and to no other VM's.
func TestPlaceOfTheRecord(t *testing.T) {
	s := controller.New(storetest.NewMemory()).Under(controller.Policy{Repositories: []string{"reg/vms"}})
	mine := controller.WithPeer(t.Context(), "src")
	rec, err := s.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vmOf("web"), Uid: uuid.NewString(),
		Prefix: "reg.example/class"})
	if err == nil {
		rec, err = s.Own(mine, &nodev1.OwnRequest{Vm: vmOf("web"), Node: "src", Generation: rec.GetGeneration()})
	}
	if err != nil {
		t.Fatal(err)
	}
	plain := owned(t, s, "src", "plain")
	for what, of := range map[string]*nodev1.Record{"a VM of no class": plain, "another VM's": rec} {
		_, err := s.Open(mine, hibernate(of, "src", "reg.example/class/"+plain.GetUid()))
		if !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.Open(mine, hibernate(rec, "src", "reg.example/class/"+rec.GetUid())); err != nil {
		t.Error(err)
	}
}

// One checkpoint went elsewhere by an order. What the node stores later goes where the record says, and a wake may
// still read the checkpoint.
func TestPlaceOfOneCheckpoint(t *testing.T) {
	policy := controller.Policy{Repositories: []string{"reg/vms"}, Places: func(context.Context, *nodev1.Record,
		*nodev1.Operation, string) error {
		return nil
	}}
	s, mine := controller.New(storetest.NewMemory()).Under(policy), controller.WithPeer(t.Context(), "src")
	rec, err := s.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vmOf("web"), Uid: uuid.NewString(),
		Prefix: "reg.example/class"})
	if err == nil {
		rec, err = s.Own(mine, &nodev1.OwnRequest{Vm: vmOf("web"), Node: "src", Generation: rec.GetGeneration()})
	}
	if err == nil {
		rec, err = snapshotAt(mine, s, rec, "reg.example/gold")
	}
	if err != nil || len(rec.GetSnapshots()) != 1 {
		t.Fatal(rec.GetSnapshots(), err)
	}
	for _, kind := range []nodev1.Kind{nodev1.Kind_KIND_HIBERNATE, nodev1.Kind_KIND_CHECKPOINT} {
		req := hibernate(rec, "src", "reg.example/gold/"+rec.GetUid())
		req.Operation.Kind = kind
		if _, err := s.Open(mine, req); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s in the place of the one checkpoint: %v", kind, err)
		}
	}
	if _, err := s.Open(mine, hibernate(rec, "src", "reg.example/class/"+rec.GetUid())); err != nil {
		t.Errorf("hibernate where the record says: %v", err)
	}
	wake := &nodev1.OpenRequest{Vm: rec.GetVm(), Operation: &nodev1.Operation{Id: "w", Kind: nodev1.Kind_KIND_WAKE,
		Repository: "reg.example/gold/" + rec.GetUid(), Destination: "src", Attempt: 1}}
	if _, err := s.Open(mine, wake); errdefs.IsPermissionDenied(err) {
		t.Errorf("a wake from the one checkpoint: %v", err)
	}
}
