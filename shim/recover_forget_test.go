package shim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/shim/journal"
)

// What a host that was restarted has left of a VM is freed, and only that.
func TestForgotten(t *testing.T) {
	w := newWorld(t).running()
	vm, err := w.service.current()
	w.must("find VM", err)
	j := *vm.journal.Load()
	for name, change := range map[string]func(*journal.Journal){
		"shim alive":   func(*journal.Journal) {},
		"bundle there": func(j *journal.Journal) { j.Shim.PID = 0 },
		"held":         func(j *journal.Journal) { j.Shim.PID, j.Bundle, j.Phase = 0, "/nowhere", journal.Sending },
		"adopted":      func(j *journal.Journal) { j.Shim.PID, j.Bundle, j.Adopted = 0, "/nowhere", true },
	} {
		k := j
		change(&k)
		if err := checkForgotten(&k); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	host, dir := vm.host, vm.dir
	w.stop()
	j.Shim.PID, j.Bundle = 0, "/nowhere"
	w.must("write journal", j.Write(dir))
	w.must("adopt", Adopt(t.Context(), host, "ns", "vm"))
	w.nothingLeft()
}

// lateDisks are not freed in time.
type lateDisks struct{ Disks }

func (lateDisks) Cleanup(context.Context, string) error { return context.DeadlineExceeded }

// A delete that containerd kills half way leaves a VM that containerd asks no other shim to end.
func TestDeleteThatIsKilled(t *testing.T) {
	w := newWorld(t).running()
	vm, err := w.service.current()
	w.must("find VM", err)
	host, dir := vm.host, vm.dir
	w.stop()
	slow := *host
	slow.Disks = lateDisks{host.Disks}
	if _, err := CleanUp(t.Context(), &slow, dir, ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("clean up: %v", err)
	}
	if err := Forget(t.Context(), host, "ns", "vm"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("forget a VM whose shim is alive: %v", err)
	}
	j, err := journal.Read(dir)
	w.must("read journal", err)
	j.Shim.PID = 0
	w.must("write journal", j.Write(dir))
	if err := Adopt(t.Context(), host, "ns", "vm"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("adopt while containerd may still end it: %v", err)
	}
	socket := filepath.Join(t.TempDir(), "served")
	w.must("write socket", os.WriteFile(socket, nil, 0o600))
	w.must("write address", os.WriteFile(filepath.Join(j.Bundle, "bootstrap.json"),
		[]byte(`{"address":"unix://`+socket+`"}`), 0o600))
	w.must("forget", Forget(t.Context(), host, "ns", "vm"))
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dead shim's socket: %v", err)
	}
	w.nothingLeft()
}
