package operator

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// The rest of a VM is no snapshot, and has no VMSnapshot: nothing is asked about it, and it is not forgotten.
func TestRestIsNotForgotten(t *testing.T) {
	rest := &nodev1.Owed{Uid: "u1", Hold: &nodev1.Hold{}, Snapshot: &nodev1.SnapshotRef{Digest: record.RestOf("u1", "")}}
	cached := &v1alpha1.VMRecord{ObjectMeta: metav1.ObjectMeta{Name: "ns.vm"}}
	if err := (base{}).endHolds(t.Context(), cached, []*nodev1.Owed{rest}); err != nil {
		t.Error(err)
	}
	if held := store.Held([]*nodev1.Owed{rest}, ""); held != nil {
		t.Errorf("without an operation %v is held", held)
	}
}

// What a VM begins from is read too: under another schema it would begin without its images.
func TestResourcesOfABeginning(t *testing.T) {
	o := decide.VM{}
	if all := resourcesOf(o); slices.Contains(all, ofSnapshots) {
		t.Errorf("a VM that begins from nothing is decided by %v", all)
	}
	o.From = &decide.Snapshot{}
	if all := resourcesOf(o); !slices.Contains(all, ofSnapshots) || !slices.Contains(all, ofContents) {
		t.Errorf("a VM that begins from a snapshot is decided by %v", all)
	}
}
