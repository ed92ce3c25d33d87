//go:build integration

package shim

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"godwit.dev/godwit/shim/rampool"
	"godwit.dev/godwit/shim/template"
	"godwit.dev/godwit/vmm/vmmtest"
)

// TestHugePages: admission counts the host's huge pages, those that are promised and not
// touched too.
func TestHugePages(t *testing.T) {
	dir := t.TempDir()
	undo, err := vmmtest.MountHuge(dir, 16<<20)
	if err != nil {
		t.Skip("NOT RUN: no huge pages:", err)
	}
	defer func() {
		if err := undo(); err != nil {
			t.Error(err)
		}
	}()
	huge, err := rampool.Huge(dir)
	other, otherErr := rampool.Huge(t.TempDir())
	if !huge || other || err != nil || otherErr != nil {
		t.Error("huge pages are not told apart")
	}
	total, _, _, err := rampool.Use(dir)
	if err != nil || total < 16<<20 {
		t.Fatalf("%d bytes, %v", total, err)
	}
	if err := reserveRAM(filepath.Join(dir, "a"), total-(4<<20), 0); err != nil {
		t.Fatal(err)
	}
	if err := reserveRAM(filepath.Join(dir, "b"), 6<<20, 0); !errdefs.IsResourceExhausted(err) {
		t.Errorf("more than there is: %v", err)
	}
	if err := reserveRAM(filepath.Join(dir, "c"), 4<<20, 0); err != nil {
		t.Error(err)
	}
}

// TestHugePagesNeitherSleepNorWake: refused by name before anything changes; the VM runs on.
func TestHugePagesNeitherSleepNorWake(t *testing.T) {
	t.Run("sleep", testHugePagesDoNotSleep)
	t.Run("wake", func(t *testing.T) {
		w := newWorld(t).asleep()
		hugeFor(t, w)
		if err := w.create(); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
			t.Errorf("wake: %v", err)
		}
		w.nothingLeft()
	})
}

func testHugePagesDoNotSleep(t *testing.T) {
	w := newWorld(t)
	hugeFor(t, w)
	w.templates = &template.Store{Dir: t.TempDir()}
	w.running()
	if due, err := w.templates.Due(1); err != nil || len(due) > 0 {
		t.Errorf("templates %+v are wanted that no RAM here can be filled from, %v", due, err)
	}
	_, err := w.capture()
	if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) || !strings.Contains(err.Error(), "huge pages") {
		t.Errorf("hibernate: %v", err)
	}
	if got := w.query().GetState(); got != string(Running) {
		t.Errorf("the VM is %s", got)
	}
	w.must("kill", w.kill("", 9))
	w.wait("")
	w.must("delete", w.delete())
}

func hugeFor(t *testing.T, w *world) {
	t.Helper()
	undo, err := vmmtest.MountHuge(w.cfg.RAMDir, 1<<30)
	if err != nil {
		t.Skip("NOT RUN: no huge pages:", err)
	}
	t.Cleanup(func() {
		if err := undo(); err != nil {
			t.Error(err)
		}
	})
}
