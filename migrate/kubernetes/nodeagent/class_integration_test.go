//go:build integration

package nodeagent

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A VMSnapshot whose class cannot be used waits and says why, and goes where the class says once that is mended. The
// VM's other snapshots stay where they were.
func TestSnapshotOfAClass(t *testing.T) {
	g := newGodwitd(t)
	startOperator(t)
	startAgent(t, g)
	pod := vmRuns(t, g, "classed", true)
	snap := newSnapshot("classed", "classed")
	snap.Spec.ClassName = "gold"
	create(t, snap)
	snapshotIs(t, "classed", decide.CondReady, decide.ReasonClassNotFound)
	class := &v1alpha1.VMSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"},
		Spec: v1alpha1.VMSnapshotClassSpec{Repository: "reg.example/gold"}}
	create(t, class)
	snapshotIs(t, "classed", decide.CondReady, decide.ReasonClassNotAllowed)
	if begun := g.begun(); len(begun) != 0 {
		t.Errorf("captures %v while the class was not fit", begun)
	}
	class.Spec.AllowedNamespaces = &metav1.LabelSelector{MatchLabels: map[string]string{
		"kubernetes.io/metadata.name": "default"}}
	if err := api().Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	snap = readySnapshot(t, "classed")
	content, _ := read(t, snap.Status.BoundSnapshotContentName, &v1alpha1.VMSnapshotContent{})
	uid := pod.Labels["godwit.dev/record-uid"]
	if content.Spec.Repository != "reg.example/gold" || content.Status.Repository != "reg.example/gold/"+uid {
		t.Errorf("order %+v, status %+v", content.Spec, content.Status)
	}
	create(t, newSnapshot("plain", "classed"))
	readySnapshot(t, "plain")
	rec, err := g.records.Get(t.Context(), &nodev1.GetRequest{Vm: &nodev1.VM{Namespace: store.Kubernetes,
		Id: "default.classed"}})
	if err != nil || len(rec.GetSnapshots()) != 2 || !rec.GetSnapshots()[0].GetGiven() ||
		rec.GetSnapshots()[1].GetRepository() != "r/"+uid {
		t.Errorf("record %v, %v", rec, err)
	}
}
