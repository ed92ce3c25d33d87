package controller_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A node may raise doubts about VMs without an owner, take them back and raise others. It stops no more VMs within
// ten minutes than a node whose doubts stand. It is told of once. The error of a claim that is stopped is one of
// its own, which names the node.
func TestDoubtsAreRaisedAtARate(t *testing.T) {
	r := newRestored(t)
	var told []string
	r.whole.Contradicts = func(node, reason string) { told = append(told, node+": "+reason) }
	vms := make([]*nodev1.VM, 48)
	for i := range vms {
		vms[i] = &nodev1.VM{Namespace: "ns", Id: fmt.Sprintf("vm%02d", i)}
		rec := r.boot(vms[i], "a")
		if _, err := r.records.Disown(r.as("a"), &nodev1.DisownRequest{Vm: vms[i], Node: "a",
			Generation: rec.GetGeneration()}); err != nil {
			t.Fatal(err)
		}
	}
	stopped := func() (n int) {
		for _, vm := range vms {
			rec := r.get(vm)
			_, err := r.records.Own(r.as("a"), &nodev1.OwnRequest{Vm: vm, Node: "a", Generation: rec.GetGeneration(),
				Uid: rec.GetUid()})
			if doubted, ok := errors.AsType[*transition.DoubtedError](err); ok {
				if n++; doubted.Node != "b" {
					t.Errorf("%v names node %q", err, doubted.Node)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.records.Disown(r.as("a"), &nodev1.DisownRequest{Vm: vm, Node: "a",
				Generation: rec.GetGeneration() + 1}); err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	lie := func(some []*nodev1.VM) {
		var all []*nodev1.Held
		for _, vm := range some {
			h := held(r.get(vm), "OWN")
			h.Generation += 100
			all = append(all, h)
		}
		r.report("b", all...)
	}
	lie(vms[:16])
	if n := stopped(); n != 16 {
		t.Fatalf("%d VMs are stopped", n)
	}
	for range 3 {
		r.report("b")
		r.clock = r.clock.Add(15 * time.Second)
		lie(vms[16:32])
		if n := stopped(); n != 0 {
			t.Errorf("%d more VMs are stopped", n)
		}
	}
	if len(told) != 1 {
		t.Errorf("told: %q", told)
	}
	r.clock = r.clock.Add(10 * time.Minute)
	lie(vms[32:])
	if n := stopped(); n != 16 {
		t.Errorf("ten minutes later %d VMs are stopped", n)
	}
}
