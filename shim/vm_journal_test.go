package shim

import (
	"os"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/shim/journal"
)

// uses wants that what is written in call was drafted before.
func (w *world) uses(call string, vm *VM, do func() error) {
	w.t.Helper()
	if !eventually(func() bool { _, err := os.Stat(draftOf(vm.dir)); return err == nil }) {
		w.t.Errorf("%s: nothing is drafted", call)
	}
	w.must(call, do())
	if _, err := os.Stat(draftOf(vm.dir)); !os.IsNotExist(err) {
		w.t.Errorf("%s: the draft was of no use: %v", call, err)
	}
}

// sendAndBack takes a VM back that was sent although a call failed: what is done before the vote is the vote's to do
// again.
func (w *world) sendAndBack() error {
	if _, err := w.send(); err != nil || w.fired() == "" {
		return err
	}
	w.must("vote", w.vote())
	if w.net.up {
		w.t.Error("tap is up after the vote")
	}
	_, err := w.machineService().Abort(w.t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.aborted++
	return err
}

// draftOf is the file of a journal that was written before its change.
func draftOf(dir string) string { return durable.Unfinished(journal.File(dir) + ".draft") }
