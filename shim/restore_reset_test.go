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
