package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func vmOf(id string) *nodev1.VM { return &nodev1.VM{Namespace: "default", Id: id} }

// owned is a VM that a node has, by its own calls.
func owned(t *testing.T, s *controller.Service, node, id string) *nodev1.Record {
	t.Helper()
	ctx := controller.WithPeer(t.Context(), node)
	if _, err := s.Ensure(ctx, &nodev1.EnsureRequest{Vm: vmOf(id)}); err != nil {
		t.Fatal(err)
	}
	rec, err := s.Own(ctx, &nodev1.OwnRequest{Vm: vmOf(id), Node: node})
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func hibernate(rec *nodev1.Record, node, repository string) *nodev1.OpenRequest {
	return &nodev1.OpenRequest{Vm: rec.GetVm(), Operation: &nodev1.Operation{
		Id: "h-" + rec.GetVm().GetId(), Kind: nodev1.Kind_KIND_HIBERNATE, Attempt: 1, Source: node,
		Generation: rec.GetGeneration(), Repository: repository,
	}}
}

// A node names no repository but that of its VM, below the prefixes that the controller knows. That holds when an
// operation opens and later. What records named before stays.
func TestRepositoriesOfOthers(t *testing.T) {
	st := storetest.NewMemory()
	old := owned(t, controller.New(st), "src", "old")
	mine := controller.WithPeer(t.Context(), "src")
	for _, step := range []func() error{
		func() error {
			_, err := controller.New(st).Open(mine, hibernate(old, "src", "before/x/"+old.GetUid()))
			return err
		},
		func() error {
			_, err := controller.New(st).Advance(mine, &nodev1.AdvanceRequest{Vm: old.GetVm(), Operation: "h-old", Attempt: 1,
				Generation: 1, Phase: nodev1.Phase_PHASE_ABORTING, Digest: "sha256:aa"})
			return err
		},
		func() error {
			_, err := controller.New(st).Finish(mine, &nodev1.FinishRequest{Vm: old.GetVm(), Operation: "h-old", Attempt: 1,
				Generation: 1, Phase: nodev1.Phase_PHASE_FAILED})
			return err
		},
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	s := controller.New(st).Under(controller.Policy{Repositories: []string{"reg/vms", "oci-layout:/srv/vms"}})
	victim, rec := owned(t, s, "other", "victim"), owned(t, s, "src", "web")
	uid := rec.GetUid()
	for _, repository := range []string{
		"reg/vms/" + victim.GetUid(), "reg/vms/x/" + uid, "evil/vms/" + uid, "reg/vms/" + uid + "/", "/" + uid, uid,
		"oci-layout:/etc/" + uid, "oci-layout:/srv/vms/../vms/" + uid, "reg/vms",
	} {
		if _, err := s.Open(mine, hibernate(rec, "src", repository)); !errdefs.IsPermissionDenied(err) ||
			!strings.Contains(err.Error(), "repositor") {
			t.Errorf("%s: %v", repository, err)
		}
	}
	if _, err := s.Open(mine, hibernate(rec, "src", "")); err != nil {
		t.Fatal(err)
	}
	step := &nodev1.AdvanceRequest{Vm: rec.GetVm(), Operation: "h-web", Attempt: 1, Generation: 1,
		Phase: nodev1.Phase_PHASE_PREPARING, Repository: "reg/vms/" + victim.GetUid()}
	if _, err := s.Advance(mine, step); !errdefs.IsPermissionDenied(err) {
		t.Errorf("advance: %v", err)
	}
	step.Repository = "oci-layout:/srv/vms/" + uid
	if _, err := s.Advance(mine, step); err != nil {
		t.Errorf("its own: %v", err)
	}
	third := owned(t, s, "src", "third") // another node's store of before
	if _, err := s.Open(mine, hibernate(third, "src", "before/x/"+third.GetUid())); err != nil {
		t.Errorf("a prefix that records had named: %v", err)
	}
}

// A node at its quota is told both numbers and the key, others go on, and what it gives back it may have again.
func TestQuota(t *testing.T) {
	s := controller.New(storetest.NewMemory()).Under(controller.Policy{Records: 2, Operations: 1})
	one, two := owned(t, s, "src", "one"), owned(t, s, "src", "two")
	ctx := controller.WithPeer(t.Context(), "src")
	full := func(what string, err error, texts ...string) {
		t.Helper()
		if !errdefs.IsResourceExhausted(err) {
			t.Fatalf("%s: %v", what, err)
		}
		for _, text := range texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v does not say %q", what, err, text)
			}
		}
	}
	_, err := s.Ensure(ctx, &nodev1.EnsureRequest{Vm: vmOf("three")})
	full("a third record", err, "2 VMs", "of 2", "controller.records_per_node")
	owned(t, s, "other", "its")
	if _, err := s.Open(ctx, hibernate(one, "src", "")); err != nil {
		t.Fatal(err)
	}
	_, err = s.Open(ctx, hibernate(two, "src", ""))
	full("a second operation", err, "1 operations", "of 1", "controller.operations_per_node")
	if _, err := s.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vmOf("host")}); err != nil {
		t.Errorf("the controller's host: %v", err)
	}
}

// A node with as many pending deletions as it may have opens no checkpoint. A hibernate it may: a VM that is stopped
// would lose its memory. Others go on, and so does the controller's host. A node says of itself alone that it deletes.
func TestQuotaOfDeletions(t *testing.T) {
	st := storetest.NewMemory()
	s := controller.New(st).Under(controller.Policy{Deletions: 2})
	ctx := controller.WithPeer(t.Context(), "src")
	for n, by := range []string{"src", "src", "other", ""} {
		vm := vmOf(fmt.Sprint("old", n))
		rec := owned(t, s, "src", fmt.Sprint("old", n))
		if _, err := st.Apply(t.Context(), vm, rec.GetVersion(), transition.Change{Record: rec,
			PendingDeletions: []*nodev1.Owed{{Vm: vm, Uid: rec.GetUid(), By: by, Snapshot: &nodev1.SnapshotRef{
				Repository: "reg/vms/" + rec.GetUid(), Digest: "sha256:x"}}}}); err != nil {
			t.Fatal(err)
		}
	}
	checkpoint := func(rec *nodev1.Record, node string) *nodev1.OpenRequest {
		open := hibernate(rec, node, "")
		open.Operation.Kind = nodev1.Kind_KIND_CHECKPOINT
		return open
	}
	one, two := owned(t, s, "src", "one"), owned(t, s, "src", "two")
	if _, err := s.Open(ctx, checkpoint(one, "src")); !errdefs.IsResourceExhausted(err) ||
		!strings.Contains(err.Error(), "2 deletions") {
		t.Errorf("with as many as it may: %v", err)
	}
	if _, err := s.Open(ctx, hibernate(two, "src", "")); err != nil {
		t.Errorf("a hibernate: %v", err)
	}
	if _, err := s.Open(controller.WithPeer(ctx, "other"), checkpoint(owned(t, s, "other", "its"), "other")); err != nil {
		t.Errorf("another node: %v", err)
	}
	if _, err := s.Open(t.Context(), checkpoint(one, "src")); err != nil {
		t.Errorf("the controller's host: %v", err)
	}
	listed := owned(t, s, "src", "listed")
	listed.Snapshots = []*nodev1.SnapshotRef{{Digest: "sha256:y", Repository: "reg/vms/" + listed.GetUid()}}
	change := transition.Change{Record: listed}
	if _, err := st.Apply(t.Context(), listed.GetVm(), listed.GetVersion(), change); err != nil {
		t.Fatal(err)
	}
	trim := &nodev1.TrimRequest{Vm: listed.GetVm(), Digest: "sha256:y", Payer: "victim", Ordered: true}
	if _, err := s.Trim(ctx, trim); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "payer") {
		t.Errorf("another node is to delete: %v", err)
	}
	trim.Payer = "src"
	if _, err := s.Trim(ctx, trim); err != nil {
		t.Errorf("it deletes itself: %v", err)
	}
}

// A record that a build before made under a forbidden name is listed, read and removed, and none is made.
func TestOldNames(t *testing.T) {
	for _, vm := range []*nodev1.VM{
		{Namespace: "../..", Id: "etc"}, {Namespace: "default", Id: "a\x1b[2J"}, {Namespace: "de\x00fault", Id: "a"},
		{Namespace: "default", Id: "a/b"},
		{Namespace: "default", Id: "a\n"}, {Namespace: "default", Id: "-a"}, {Namespace: strings.Repeat("n", 77), Id: "a"},
		{Namespace: "default", Id: "\u00e4"},
	} {
		st, ctx := storetest.NewMemory(), context.Background()
		s := controller.New(st)
		if _, err := s.Ensure(ctx, &nodev1.EnsureRequest{Vm: vm}); !errdefs.IsInvalidArgument(err) ||
			!strings.Contains(err.Error(), "vm.") {
			t.Errorf("%q: %v", vm, err)
		}
		if _, err := s.Get(ctx, &nodev1.GetRequest{Vm: vm}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("get %q: %v", vm, err)
		}
		if _, err := st.Apply(ctx, vm, 0, transition.Change{Record: &nodev1.Record{Vm: vm, Uid: "u"}}); err != nil {
			t.Fatal(err)
		}
		if all, err := s.List(ctx, &nodev1.ListRequest{}); err != nil || len(all.GetRecords()) != 1 {
			t.Errorf("list %q: %v, %v", vm, all, err)
		}
		if _, err := s.Get(ctx, &nodev1.GetRequest{Vm: vm}); err != nil {
			t.Errorf("get %q: %v", vm, err)
		}
		if _, err := s.Remove(ctx, &nodev1.RemoveRequest{Vm: vm, Force: true}); err != nil {
			t.Errorf("remove %q: %v", vm, err)
		}
	}
}

// A VM whose owner never was a node is given up by the controller's host alone, by name and by force.
func TestOwnerThatNeverWas(t *testing.T) {
	st := storetest.NewMemory()
	s, vm := controller.New(st), vmOf("orphan")
	rec := &nodev1.Record{Vm: vm, Uid: "u", Owner: &nodev1.Owner{Node: "absent"}, Generation: 1}
	if _, err := st.Apply(t.Context(), vm, 0, transition.Change{Record: rec}); err != nil {
		t.Fatal(err)
	}
	for what, req := range map[string]*nodev1.RemoveRequest{
		"without": {Vm: vm, Force: true}, "another": {Vm: vm, Force: true, LostNode: "src"},
		"no force": {Vm: vm, LostNode: "absent"},
	} {
		if _, err := s.Remove(t.Context(), req); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	gone := &nodev1.RemoveRequest{Vm: vm, Force: true, LostNode: "absent"}
	if _, err := s.Remove(controller.WithPeer(t.Context(), "src"), gone); !errdefs.IsPermissionDenied(err) {
		t.Errorf("by another node: %v", err)
	}
	if _, err := s.Remove(t.Context(), gone); err != nil {
		t.Error(err)
	}
}

// What another node says is bounded in each field, and texts for people are cut and cleaned instead.
func TestTidy(t *testing.T) {
	req := &nodev1.FinishRequest{Reason: "boom\x1b[2J" + strings.Repeat("x", 10000), Operation: "o"}
	if err := controller.Sanitize(req); err != nil || len(req.GetReason()) > 5000 ||
		strings.Contains(req.GetReason(), "\x1b") || !strings.HasPrefix(req.GetReason(), `boom\x1b[2J`) {
		t.Errorf("%v, %d bytes: %.40q", err, len(req.GetReason()), req.GetReason())
	}
	for name, req := range map[string]*nodev1.OpenRequest{
		"a long word":       {Operation: &nodev1.Operation{Stdio: strings.Repeat("x", 2049)}},
		"a control":         {Operation: &nodev1.Operation{Destination: "a\x00"}},
		"a long list":       {Operation: &nodev1.Operation{AbortOn: make([]string, 9)}},
		"a long receipt":    {Operation: &nodev1.Operation{Receipt: strings.Repeat("x", 70000)}},
		"a long namespace":  {Vm: &nodev1.VM{Namespace: strings.Repeat("x", 2049)}},
		"a control in list": {Operation: &nodev1.Operation{AbortOn: []string{"\x07"}}},
	} {
		if err := controller.Sanitize(req); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "operation.") &&
			!strings.Contains(err.Error(), "vm.") {
			t.Errorf("%s: %v", name, err)
		}
	}
	strange := &nodev1.OwnRequest{Node: "a"}
	strange.ProtoReflect().SetUnknown([]byte{0xfa, 0x7f, 1, 'x'})
	if err := controller.Sanitize(strange); err != nil || len(strange.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("unknown fields stay: %v", err)
	}
}

// TestPolicyOf shows that VMs may lie in the configured registry, but not in a node's default store.
func TestPolicyOf(t *testing.T) {
	cfg := config.Default()
	cfg.Controller.Repositories, cfg.Move.Pull = []string{"r.example/vms"}, "none"
	if p := controller.PolicyOf(cfg, "o.example/own"); len(p.Repositories) != 2 || p.Repositories[0] != "o.example/own" ||
		p.Pull != "none" || p.Records != cfg.Controller.RecordsPerNode || p.Operations != cfg.Controller.OperationsPerNode {
		t.Errorf("policy %+v", p)
	}
	cfg.Registry.Own = true
	if p := controller.PolicyOf(cfg, "o.example/own"); len(p.Repositories) != 1 || p.Repositories[0] != "r.example/vms" {
		t.Errorf("with the default store: %+v", p)
	}
}
