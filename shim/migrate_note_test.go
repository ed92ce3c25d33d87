package shim

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A VM that was sent, and whose journal cannot say so, runs on after its sender has gone.
func TestSentAndNotNoted(t *testing.T) {
	w := moving(t)
	vm, err := w.service.current()
	w.must("find", err)
	journal := filepath.Join(vm.dir, "node.json")
	w.store.spoil = func() {
		w.must("spoil", errors.Join(os.Remove(journal), os.MkdirAll(filepath.Join(journal, "x"), 0o700)))
	}
	if _, err := w.send(); err == nil {
		t.Fatal("sent")
	}
	w.must("mend", os.RemoveAll(journal))
	for begun := time.Now(); w.store.lingers.Load(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatal("the worker has the VM's memory mapped")
		}
	}
	if !w.machine.running() {
		t.Error("the VM does not run")
	}
}
