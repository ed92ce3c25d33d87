package shim

import (
	"testing"

	"github.com/containerd/errdefs"
)

// An exec that is added again under its id has another name in the guest, and an orphan is dropped
// alone.
func TestProcessTable(t *testing.T) {
	table := processTable{init: &process{}, execs: map[string]*process{}}
	first, second := &process{id: "e"}, &process{id: "e"}
	table.add(first, 3)
	table.add(second, 3)
	if first.guest == second.guest || table.execs["e"] != second {
		t.Errorf("both are %q in the guest", first.guest)
	}
	if p, err := table.find(""); p != table.init || err != nil {
		t.Errorf("find init = %v, %v", p, err)
	}
	if _, err := table.find("other"); !errdefs.IsNotFound(err) {
		t.Errorf("find of an exec that is not there = %v", err)
	}
	if all := table.all(); len(all) != 2 || all[1] != table.init {
		t.Errorf("all = %v, init is not the last", all)
	}
	table.orphan(first)
	table.orphan(second)
	table.dropOrphan(first)
	if len(table.orphans) != 1 || table.orphans[0] != second {
		t.Errorf("orphans = %v", table.orphans)
	}
}
