//go:build integration

package operator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A VM has 1,000 VMSnapshots, all Ready. An operator that begins, and a change of the VM's record, have all of them
// looked at by no requests. One more, and one that is deleted, cost as many as with 100. The record lists all of them,
// and is not decoded for each.
func TestThousandSnapshotsOfAVM(t *testing.T) {
	const few, many = 100, 1000
	t.Run("boot", func(t *testing.T) {
		start(t)
		create(t, newVM("many"))
		newNode(t).boot(t, podIs(t, "many-g1-a0", true), "a")
		inPhase(t, "many", v1alpha1.VMRunning)
	})
	st, err := store.Open(server.REST(), apitest.System)
	if err != nil {
		t.Fatal(err)
	}
	var keys []types.NamespacedName
	for _, size := range []int{few, many} {
		keys = append(keys, ready(t, st, len(keys), size)...)
		t.Run(fmt.Sprint(size), func(t *testing.T) { lookedAt(t, keys) })
		keys = keys[1:] // which was deleted
	}
}

// lookedAt starts an operator, and has it look at all snapshots of a VM.
func lookedAt(t *testing.T, keys []types.NamespacedName) {
	t.Helper()
	const most = 60 // far less than there are snapshots, and more than two of them need
	var cached client.Client
	begun := reconciles(t)
	count := start(t, func(o *Options) {
		o.Manager = func(mgr manager.Manager) error { cached = mgr.GetClient(); return nil }
	})
	asked := func() (all []string) {
		for _, req := range count.seen() {
			if !strings.Contains(req, "/leases") && !strings.Contains(req, "watch=true") && !strings.Contains(req, "/events") {
				all = append(all, req)
			}
		}
		return all
	}
	all := func(what string, since float64) {
		t.Helper()
		apitest.Eventually(t, what, func() (bool, error) { return reconciles(t) >= since+float64(len(keys)), nil })
	}
	bounded := func(what string, since int) {
		t.Helper()
		if got := asked()[since:]; len(got) > most {
			t.Errorf("%s: %d requests with %d snapshots, such as %v", what, len(got), len(keys), got[:most])
		} else {
			t.Logf("%s: %d requests with %d snapshots", what, len(got), len(keys))
		}
	}
	all("an operator that begins looks at each", begun)
	bounded("an operator begins", 0)
	quiet, since := len(asked()), reconciles(t)
	touch(t, "default.many")
	all("each is looked at when the record changes", since)
	bounded("the record changes", quiet)
	decodedOnce(t, View{Reader: cached, Engine: true, decoded: &decoded{}}, keys)

	quiet = len(asked())
	more := &v1alpha1.VMSnapshot{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("more-", len(keys)), Namespace: "default"}}
	more.Spec.Source.VMRef = &v1alpha1.VMRef{Name: "many"}
	create(t, more)
	apitest.Eventually(t, "the next one is ordered", func() (bool, error) {
		is, _ := get(t, more.Name, &v1alpha1.VMSnapshot{})
		return is.Status.BoundSnapshotContentName != "", nil
	})
	bounded("another one", quiet)
	quiet = len(asked())
	gone := &v1alpha1.VMSnapshot{ObjectMeta: metav1.ObjectMeta{Name: keys[0].Name, Namespace: "default"}}
	if err := api().Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, "one is deleted", func() (bool, error) {
		_, there := get(t, gone.Name, &v1alpha1.VMSnapshot{})
		return !there, nil
	})
	bounded("one is deleted", quiet)
}

// ready makes VMSnapshots from a number on, which are Ready as an operator has said it.
func ready(t *testing.T, st *store.Store, from, to int) (keys []types.NamespacedName) {
	t.Helper()
	state, err := st.Load(t.Context(), vmOf("default.many"), transition.Asked{})
	if err != nil {
		t.Fatal(err)
	}
	rec := state.Record
	for i := from; i < to; i++ {
		s := &v1alpha1.VMSnapshot{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("many-%d-%d", to, i), Namespace: "default",
			Finalizers: []string{decide.FinalizerSnapshot}}}
		s.Spec.Source.VMRef = &v1alpha1.VMRef{Name: "many"}
		create(t, s)
		keys = append(keys, client.ObjectKeyFromObject(s))
		rec.Snapshots = append(rec.Snapshots, &nodev1.SnapshotRef{Digest: fmt.Sprintf("sha256:%064x", i),
			Repository: "r/" + rec.GetUid(), Generation: 1, Operation: string(s.UID), CreatedUnixNano: 1, Manual: true})
	}
	if _, err := st.Apply(t.Context(), rec.GetVm(), rec.GetVersion(), transition.Change{Record: rec,
		Under: state.Store.GetVersion()}); err != nil {
		t.Fatal(err)
	}
	v := View{Reader: api()}
	for _, key := range keys {
		o := decide.Snapshot{Object: &v1alpha1.VMSnapshot{}, Record: rec}
		if _, err := v.Get(t.Context(), key, o.Object); err != nil {
			t.Fatal(err)
		}
		o.Object.Status = decide.SnapshotStatus(o, decide.NextSnapshot(o))
		if err := api().Status().Update(t.Context(), o.Object); err != nil {
			t.Fatal(err)
		}
	}
	return keys
}

func touch(t *testing.T, record string) {
	t.Helper()
	o := &v1alpha1.VMRecord{ObjectMeta: metav1.ObjectMeta{Name: record}}
	if err := api().Patch(t.Context(), o, client.RawPatch(types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{"test/touched":%q}}}`, time.Now().String()))); err != nil {
		t.Fatal(err)
	}
}

// decodedOnce looks at all snapshots. They have one record in common, which is not decoded for each.
func decodedOnce(t *testing.T, v View, keys []types.NamespacedName) {
	t.Helper()
	var first *nodev1.Record
	for _, key := range keys {
		o, there, err := v.Snapshot(t.Context(), key)
		if next := decide.NextSnapshot(o); err != nil || !there || o.Unread != nil || next.Waits != "" {
			t.Fatalf("%s: %v, %v, %+v", key, err, o.Unread, next)
		}
		if first == nil {
			first = o.Record
		}
		if o.Record != first || first == nil {
			t.Fatalf("%s: its record was decoded again", key)
		}
	}
}
