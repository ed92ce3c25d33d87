//go:build integration

package store_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	rootstore "godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// spoil makes a record one that cannot be read, as a hand in an editor does.
func spoil(t *testing.T, name, patch string) {
	t.Helper()
	client, err := dynamic.NewForConfig(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Resource(v1alpha1.GroupVersion.WithResource("vmrecords")).Patch(t.Context(), name,
		types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// One record of three cannot be read. Each list has the others, and names it. No call says that there is no VM with
// its uid: not to who deletes what no record has, and not to who makes a record with that uid. What the others owe is
// carried out. Once nothing tells its uid, no uid is known to be free.
func TestOneUnreadableRecord(t *testing.T) {
	st, _ := followed(t, nil)
	service := controller.New(st)
	for _, id := range []string{"a", "b", "c"} {
		if _, err := st.Apply(t.Context(), vm(id), 0, transition.Change{Record: &nodev1.Record{Vm: vm(id), Uid: "u" + id,
			Generation: 1, Owner: &nodev1.Owner{Node: "n"}}, PendingDeletions: []*nodev1.Owed{{Vm: vm(id), Payer: "n",
			Snapshot: &nodev1.SnapshotRef{Repository: "r", Digest: "d" + id}}}}); err != nil {
			t.Fatal(err)
		}
	}
	spoil(t, "ns.b", `{"record":"/////w=="}`)

	all, err := st.List(t.Context(), "", 0)
	isUnread(t, "list", err)
	areOthers(t, "list", all)
	which := rootstore.Which{Node: "n", Deleter: "n"}
	found, err := st.Find(t.Context(), which)
	if err != nil || len(found.Unread) != 1 || found.Unread[0].UID != "ub" {
		t.Errorf("find: %v, %v", found.Unread, err)
	}
	areOthers(t, "find", found.Records)
	apitest.Eventually(t, "the mirror has the others", func() (bool, error) {
		found, ok := st.FindCached(which)
		return ok && len(found.Records) == 2 && len(found.Unread) == 1 && found.Unread[0].VM.GetId() == vm("b").GetId(), nil
	})
	owed, err := st.PendingDeletions(t.Context(), rootstore.WhichDeletions{Deleter: "n"})
	isUnread(t, "deletions", err)
	if len(owed) != 2 {
		t.Errorf("deletions: %v", owed)
	}
	if err := st.Clear(t.Context(), vm("a"), "r", "da"); err != nil {
		t.Error(err)
	}
	if err := st.Clear(t.Context(), vm("b"), "r", "db"); !errdefs.IsDataLoss(err) {
		t.Errorf("clear of what cannot be read: %v", err)
	}

	for what, req := range map[string]*nodev1.ListRequest{"all": {}, "parts": {Parts: true}, "of a node": {Node: "n"},
		"of a moment ago": {Node: "n", Cached: true}} {
		resp, err := service.List(t.Context(), req)
		if err != nil || !slices.Equal(resp.GetUnread(), []string{"k8s.io/ns.b"}) {
			t.Errorf("%s: %v, %v", what, resp.GetUnread(), err)
		}
		areOthers(t, what, resp.GetRecords())
	}
	known := func(uid string) error {
		_, err := service.List(t.Context(), &nodev1.ListRequest{Uids: []string{uid}})
		return err
	}
	if known("ua") != nil || !errdefs.IsDataLoss(known("ub")) || !errdefs.IsDataLoss(known("ux")) {
		t.Errorf("which uids are known: ua %v, ub %v, ux %v", known("ua"), known("ub"), known("ux"))
	}
	if got, err := st.Load(t.Context(), vm("b"), transition.Asked{}); !errdefs.IsDataLoss(err) {
		t.Errorf("it is read as %v, %v", got, err)
	}
	if got, err := st.Apply(t.Context(), vm("b"), 0, transition.Change{Record: &nodev1.Record{Vm: vm("b")}}); err == nil {
		t.Errorf("it is made anew: %v", got)
	}
	spoil(t, "ns.b", `{"summary":{"uid":null}}`)
	if !errdefs.IsDataLoss(known("ux")) {
		t.Errorf("nothing tells the uid, and ux is known: %v", known("ux"))
	}
}

func isUnread(t *testing.T, what string, err error) {
	t.Helper()
	var some *rootstore.UnreadError
	if !errors.As(err, &some) || len(some.All) != 1 || some.All[0].VM.GetId() != vm("b").GetId() {
		t.Errorf("%s: %v", what, err)
	}
}

func areOthers(t *testing.T, what string, all []*nodev1.Record) {
	t.Helper()
	if len(all) != 2 || all[0].GetUid() != "ua" || all[1].GetUid() != "uc" {
		t.Errorf("%s: %v", what, all)
	}
}
