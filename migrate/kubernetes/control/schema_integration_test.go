//go:build integration

package control

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
)

// asleep fails once a VM that sleeps has an order to do anything else, a pod or an operation.
func (w *world) asleep(name string) error {
	rec, all := w.record(name), w.orders(name)
	for _, op := range all {
		if op.Spec.Kind != v1alpha1.KindHibernate {
			return fmt.Errorf("VM %s has order %s to %s, which is %s", name, op.Name, op.Spec.Kind, op.Status.Phase)
		}
	}
	if len(w.pods(name)) > 0 || rec.GetOperation() != nil || rec.GetOwner().GetDigest() == "" {
		return fmt.Errorf("VM %s has %d orders, %d pods, and the record %v", name, len(all), len(w.pods(name)), rec)
	}
	return nil
}

// saysOutdated waits for the event of a schema that lacks a field.
func (w *world) saysOutdated(name, field string) {
	w.t.Helper()
	apitest.Eventually(w.t, "an event says that schema "+name+" lacks "+field, func() (bool, error) {
		all := &eventsv1.EventList{}
		err := w.api.List(w.t.Context(), all)
		for _, e := range all.Items {
			if e.Reason == "SchemaOutdated" && e.Regarding.Name == name+".godwit.dev" && strings.Contains(e.Note, field) {
				return true, nil
			}
		}
		return false, errors.Join(err, fmt.Errorf("%d events", len(all.Items)))
	})
}

// touch has the operator look at a VM and read it anew: something of it is to be done.
func (w *world) touch(name string) {
	w.t.Helper()
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	if err := w.api.Patch(w.t.Context(), vm, client.RawPatch(types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{"test/touched":%q}}}`, time.Now().String()))); err != nil {
		w.t.Fatal(err)
	}
}

// looks waits until an operator has looked at schemas again and again, while something stays so. VMs of which something
// is to be done are touched: without that it looks each five seconds.
func (w *world) looks(so func() error, touched ...string) {
	w.t.Helper()
	const more = 24
	count := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.looked
	}
	from := count()
	last := from - 1
	apitest.Eventually(w.t, "an operator looks at the schemas", func() (bool, error) {
		if err := so(); err != nil {
			w.t.Fatal(err)
		}
		now := count()
		for _, name := range touched {
			if now > last {
				w.touch(name)
			}
		}
		last = now
		return now >= from+more, fmt.Errorf("%d times", now-from)
	})
}

// kill ends the operator, and the next one begins.
func (w *world) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now.dead.Store(true)
}

// Somebody installs the schema of an older build, which has no operatingMode. Without it a VM is one that is to run. No
// VM that sleeps wakes, also not one that is written meanwhile, and an event names the field. An operator that begins
// then does not lead. With the schema of this build all goes on, and what was not written is as it was.
func TestOlderSchemaWakesNothing(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"unwritten", "written"} {
		w.create(name)
		w.wants(name, `"operatingMode":"Hibernated"`)
		w.until(name, "sleeps", func(vm *v1alpha1.VirtualMachine) bool {
			return vm.Status.Phase == v1alpha1.VMHibernated && vm.Status.Operation == nil && len(w.pods(name)) == 0
		})
	}
	w.create("runs")
	back := server.Downgrade(t, "virtualmachines", "spec.operatingMode", "default", "unwritten")
	sleep := func() error { return errors.Join(w.asleep("unwritten"), w.asleep("written")) }
	w.looks(sleep, "written")
	w.saysOutdated("virtualmachines", "spec.operatingMode")
	w.kill()
	w.looks(sleep) // the one that begins
	back()
	w.wants("written", `"operatingMode":"Hibernated"`)
	w.wants("runs", `"nodeName":"c"`)
	w.running("runs", "c")
	if err := w.asleep("unwritten"); err != nil {
		t.Error(err)
	}
	w.wants("unwritten", `"operatingMode":"Running"`)
	w.running("unwritten", "a")
}

// The schema of the records lacks a phase that this build writes: a move could not go on. None is begun, and a VM that
// is to move runs where it is. It moves when the schema is back.
func TestOlderSchemaOfRecords(t *testing.T) {
	w := newWorld(t)
	w.create("phase")
	back := server.WithoutValue(t, "vmrecords", "summary.phase", string(v1alpha1.RecordSwitching))
	w.wants("phase", `"nodeName":"c"`)
	w.looks(func() error {
		if rec := w.record("phase"); rec.GetOperation() != nil || rec.GetOwner().GetNode() != "a" {
			return fmt.Errorf("the record is %v", rec)
		}
		return nil
	}, "phase")
	w.saysOutdated("vmrecords", `value "Switching" of summary.phase`)
	back()
	w.running("phase", "c")
}

// Orders lose the field of their node, and a VM that has had none is to move to a node. The move that is ordered is to
// that node, and not where the scheduler puts it: no order is made before orders have the field again.
func TestOlderSchemaOfOrders(t *testing.T) {
	w := newWorld(t)
	w.create("moved")
	w.wants("moved", `"nodeName":"c"`)
	w.running("moved", "c")
	w.create("new")
	back := server.Downgrade(t, "vmoperations", "spec.nodeName", "default", w.orders("moved")[0].Name)
	w.wants("new", `"nodeName":"c"`)
	w.looks(func() error {
		if all := w.orders("new"); len(all) > 0 {
			return fmt.Errorf("order %+v", all[0].Spec)
		}
		return nil
	}, "new")
	back()
	w.running("new", "c")
	if all := w.orders("new"); len(all) != 1 || all[0].Spec.NodeName != "c" {
		t.Errorf("orders %+v", all)
	}
}
