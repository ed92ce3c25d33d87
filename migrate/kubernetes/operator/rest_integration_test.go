//go:build integration

package operator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"
)

// reconciles is how often controllers have looked at something.
func reconciles(t *testing.T) (n float64) {
	t.Helper()
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "controller_runtime_reconcile_total" {
			for _, m := range family.GetMetric() {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// At rest everything is looked at again and again, and the API server is asked nothing. The lease, the watches and the
// look at each schema once a round are there whatever there is to do: they are not counted.
func TestRestAsksNothing(t *testing.T) {
	const vms, rounds = 5, 3
	count := start(t, func(o *Options) { o.Resync = 200 * time.Millisecond })
	n := newNode(t)
	for i := range vms {
		create(t, newVM(fmt.Sprint("rest-", i)))
	}
	for i := range vms {
		n.boot(t, podIs(t, fmt.Sprintf("rest-%d-g1-a0", i), true), "a")
	}
	ready := func(name string) func() (bool, error) {
		return func() (bool, error) {
			vm, _ := get(t, name, &v1alpha1.VirtualMachine{})
			pod, _ := get(t, name+"-g1-a0", &corev1.Pod{})
			return meta.IsStatusConditionTrue(vm.Status.Conditions, decide.CondReady) && len(pod.Status.Conditions) > 1, nil
		}
	}
	for i := range vms {
		apitest.Eventually(t, "each VM is ready", ready(fmt.Sprint("rest-", i)))
	}
	const schemas = "/customresourcedefinitions/"
	asked := func() (all []string) {
		for _, req := range count.seen() {
			if !strings.Contains(req, schemas) && !strings.Contains(req, "/leases") && !strings.Contains(req, "watch=true") {
				all = append(all, req)
			}
		}
		return all
	}
	// Events are written a moment later than what they are about.
	quiet, since := len(asked()), reconciles(t)
	apitest.Eventually(t, "it rests", func() (bool, error) {
		if now := len(asked()); now != quiet {
			quiet, since = now, reconciles(t)
		}
		return reconciles(t) >= since+rounds*vms, nil
	})
	looks := func() (all map[string]int) {
		all = map[string]int{}
		for _, req := range count.seen() {
			if strings.Contains(req, schemas) {
				all[req]++
			}
		}
		return all
	}
	from, at, before := reconciles(t), time.Now(), looks()
	apitest.Eventually(t, "everything is looked at again", func() (bool, error) {
		return reconciles(t) >= from+rounds*vms, nil
	})
	if all := asked(); len(all) > quiet {
		t.Errorf("at rest it has asked %v", all[quiet:])
	}
	for req, n := range looks() {
		if most := 1 + int(time.Since(at)/schemaRound); n-before[req] > most {
			t.Errorf("at rest it has asked %d times for %s, want at most %d", n-before[req], req, most)
		}
	}
	for _, req := range count.seen() {
		if strings.Contains(req, "/api/v1/pods?") && !strings.Contains(req, "labelSelector=godwit.dev%2Fvm") {
			t.Errorf("pods of others are watched: %s", req)
		}
	}
	t.Logf("%d requests until it rested; then %.0f reconciles with none", quiet, reconciles(t)-since)
	for i := range vms {
		remove(t, n, fmt.Sprint("rest-", i), "a", fmt.Sprintf("rest-%d-g1-a0", i))
	}
}
