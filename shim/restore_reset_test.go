package shim

import (
	"os"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/vmm"
)

// A VM disk runs while its RAM comes. After a reset of its guest none comes any more, and the next snapshot reads all.
func TestResetDuringALazyWake(t *testing.T) {
	w, _ := diskWorld(t)
	w, _ = w.lazily()
	look := resetLook
	resetLook = time.Millisecond
	t.Cleanup(func() { resetLook = look })
	w.running()
	if w.machine.cfg.Track != vmm.TrackPages || w.journal().Postcopy == nil || !strings.HasPrefix(w.restoring(), "lazy") {
		t.Fatalf("VMM %+v, journal %+v, restore %q", w.machine.cfg, w.journal(), w.restoring())
	}
	captured := make(chan error, 1)
	go func() { _, err := w.capture(); captured <- err }()
	if err := os.WriteFile(tableFile(w.journal()), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.lazy.(*fakeLazy).remapped.Store(true)
	w.must("capture", <-captured)
	if j := w.journal(); j.Postcopy != nil || j.Armed || w.restoring() != "" {
		t.Errorf("journal %+v, restore %q", j, w.restoring())
	}
}

// A shim that dies as it ends the wait for RAM, which is whole, leaves RAM that nothing waits for. Its successor ends
// the fill: the VM goes on, and the next snapshot compares all pages.
func TestShimDiesAtTheEndOfAFill(t *testing.T) {
	w, come := lazily(t)
	w.running()
	vm, err := w.service.current()
	w.must("find", err)
	w.lazy.(*fakeLazy).dies.Store(true)
	f := vm.postcopy.filling()
	come()
	<-f.over
	if w.journal().Postcopy == nil || w.machine.running() {
		t.Fatalf("it did not die in the pause: journal %+v", w.journal())
	}
	vm.postcopy.resume()
	if !eventually(func() bool { return vm.postcopy.filling() == nil && w.machine.running() }) {
		t.Fatalf("restore is %q, the VM runs: %v", w.restoring(), w.machine.running())
	}
	if j := w.journal(); j.Postcopy != nil || j.Armed || w.store.fills != 1 {
		t.Errorf("journal %+v after %d workers", j, w.store.fills)
	}
	_, err = w.capture()
	w.must("capture", err)
}

// RAM of a guest with an agent that is not waited for any more is a mistake, which does not end its fill.
func TestRemappedRAMOfAnAgent(t *testing.T) {
	w, _ := lazily(t)
	w.running()
	w.lazy.(*fakeLazy).remapped.Store(true)
	vm, err := w.service.current()
	w.must("find", err)
	vm.postcopy.stop(t.Context())
	vm.postcopy.resume()
	if !eventually(func() bool { return strings.Contains(w.restoring(), "waits: RAM was mapped anew") }) {
		t.Errorf("restore is %q", w.restoring())
	}
	if w.journal().Postcopy == nil {
		t.Error("the fill has ended")
	}
}
