package shim

import (
	"errors"
	"os"
	"testing"

	"godwit.dev/godwit/shim/journal"
)

// How a task has ended is in its bundle before anybody is told, and not earlier.
func TestEndIsNoted(t *testing.T) {
	w := newWorld(t).running()
	vm, err := w.service.current()
	w.must("find VM", err)
	dir := vm.journal.Load().Bundle
	if _, err := journal.ReadExit(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("end of a task that runs: %v", err)
	}
	w.agent.exit("") <- 7
	if got := w.wait(""); got != 7 {
		t.Errorf("exit status %d", got)
	}
	end, err := journal.ReadExit(dir)
	if err != nil || end.Status != 7 || end.At.IsZero() {
		t.Errorf("noted end: %+v, %v", end, err)
	}
}
