package shim

import (
	"errors"
	"os"
	"testing"

	"github.com/containerd/errdefs"
)

// How a task has ended is in its bundle before anybody is told, and not earlier.
func TestEndIsNoted(t *testing.T) {
	w := newWorld(t).running()
	vm, err := w.service.the()
	w.must("find VM", err)
	dir := vm.noted().Bundle
	if _, err := EndOf(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("end of a task that runs: %v", err)
	}
	w.agent.exit("") <- 7
	if got := w.wait(""); got != 7 {
		t.Errorf("exit status %d", got)
	}
	end, err := EndOf(dir)
	if err != nil || end.Status != 7 || end.At.IsZero() {
		t.Errorf("noted end: %+v, %v", end, err)
	}
}

// What a host that was restarted has left of a VM is freed, and only that.
func TestForgotten(t *testing.T) {
	w := newWorld(t).running()
	vm, err := w.service.the()
	w.must("find VM", err)
	j := *vm.noted()
	for name, change := range map[string]func(*Journal){
		"shim alive":   func(*Journal) {},
		"bundle there": func(j *Journal) { j.Shim.PID = 0 },
		"held":         func(j *Journal) { j.Shim.PID, j.Bundle, j.Phase = 0, "/nowhere", Sending },
		"adopted":      func(j *Journal) { j.Shim.PID, j.Bundle, j.Adopted = 0, "/nowhere", true },
	} {
		k := j
		change(&k)
		if err := forgotten(&k); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	host, dir := vm.host, vm.dir
	w.stop()
	j.Shim.PID, j.Bundle = 0, "/nowhere"
	w.must("write journal", j.store(dir))
	w.must("adopt", Adopt(t.Context(), host, "ns", "vm"))
	w.nothingLeft()
}
