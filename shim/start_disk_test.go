package shim

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
)

// Wherever after its commit the shim of a wake dies, the next task of the container finds the disk: with a successor,
// and on a node whose Create asks no record, where the VM ends with its shim.
func TestDiskOfAWakeWhoseShimDiesIsKept(t *testing.T) {
	for n := 1; ; n++ {
		at := ""
		for name, end := range map[string]func(*world, *VM) error{
			"successor": func(w *world, old *VM) error {
				next := w.succeed(old)
				(&adoption{vm: next}).finishWake(t.Context())
				w.agent.exit("") <- 0
				<-next.owner.init.done
				return reclaim(t.Context(), w.host(), next.dir, next.journal.Load())
			},
			"none": func(w *world, old *VM) error {
				w.must("forget shim", old.write(func(j *journal.Journal) { j.Shim = proc.ID{} }))
				w.unasked = true
				_, err := CleanUp(t.Context(), w.host(), old.dir, "")
				return err
			},
		} {
			w := newWorld(t).asleep()
			var old *VM
			if old, at = w.halfAwake(n); at == "" {
				break
			}
			w.kept.content = nil // what a Start that came to its end would have kept
			w.must(at+", "+name, end(w, old))
			if _, kept := w.kept.content["rw"]; !kept {
				t.Errorf("dead at %s, %s: the next task of the container has no disk", at, name)
			}
		}
		if at == "" {
			if n < 4 {
				t.Errorf("only %d calls: the deaths are not everywhere", n-1)
			}
			return
		}
	}
}

// A disk that cannot be kept stays where it is, and the task can be deleted once there is room.
func TestDiskThatCannotBeKeptStays(t *testing.T) {
	w := newWorld(t).asleep()
	w.kept.full = true
	w.running()
	w.agent.exit("") <- 0
	vm, err := w.service.current()
	w.must("find the VM", err)
	<-vm.owner.init.done
	if err := errgrpc.ToNative(w.delete()); !errdefs.IsResourceExhausted(err) {
		t.Errorf("delete = %v", err)
	}
	if _, err := os.Stat(filepath.Join(vm.dir, "disks", "rw.img")); err != nil {
		t.Error(err)
	}
	w.kept.full = false
	w.must("delete again", w.delete())
	if _, kept := w.kept.content["rw"]; !kept {
		t.Error("deleted, and not kept")
	}
}
