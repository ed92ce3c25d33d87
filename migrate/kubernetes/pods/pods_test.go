package pods_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Which pod a record names. A boot that kubelet tried again claims the VM once more, and is of the same pod.
func TestNames(t *testing.T) {
	boot := func() *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p1", Labels: map[string]string{
			pods.LabelRecordUID: "u1", pods.LabelGeneration: "4"}}, Spec: corev1.PodSpec{NodeName: "a"}}
	}
	arrived := boot()
	arrived.Labels[pods.LabelOperation] = "op1"
	foreign := boot()
	foreign.Labels[pods.LabelRecordUID] = "u2"
	at := func(node string, generation uint64, place string) *nodev1.Record {
		return &nodev1.Record{Uid: "u1", Owner: &nodev1.Owner{Node: node}, Generation: generation, Place: place}
	}
	for name, test := range map[string]struct {
		rec  *nodev1.Record
		pod  *corev1.Pod
		want bool
	}{
		"no record":                  {pod: boot()},
		"it boots":                   {rec: at("a", 4, ""), pod: boot(), want: true},
		"it booted again in its pod": {rec: at("a", 6, ""), pod: boot(), want: true},
		"not yet":                    {rec: at("a", 3, ""), pod: boot()},
		"another node":               {rec: at("b", 4, ""), pod: boot()},
		"no node":                    {rec: at("", 4, ""), pod: boot()},
		"another VM":                 {rec: at("a", 4, ""), pod: foreign},
		"it arrived":                 {rec: at("a", 4, "p1"), pod: arrived, want: true},
		"it arrived, and ended":      {rec: at("a", 5, ""), pod: arrived},
		"it left, and came back":     {rec: at("a", 6, "p2"), pod: boot()},
		"another pod of the node":    {rec: at("a", 4, "p2"), pod: arrived},
	} {
		if got := pods.Names(test.rec, test.pod); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
