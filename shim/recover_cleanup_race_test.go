package shim

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
)

// hookedDisks call hook in the midst of what frees a VM.
type hookedDisks struct {
	Disks
	hook func()
}

func (d hookedDisks) Cleanup(ctx context.Context, dir string) error {
	d.hook()
	return d.Disks.Cleanup(ctx, dir)
}

func hookedHost(host *Host, hook func()) *Host {
	own := *host
	own.Disks = hookedDisks{host.Disks, hook}
	return &own
}

// fenced is a destination that its shim has given up, before it died: what containerd starts
// frees it, and so does the successor that godwitd starts.
func fenced(t *testing.T) *world {
	w := deadDestination(t, false)
	j := w.left()
	j.Phase = journal.Fenced
	w.must("fence", j.Write(w.dir()))
	return w
}

func (w *world) dir() string { return w.cfg.VMDir("ns", "vm") }

func (w *world) left() *journal.Journal {
	w.t.Helper()
	j, err := journal.Read(w.dir())
	w.must("load journal", err)
	return j
}

// fenced waits for a successor that answers for the fence, ends the operation, and wants
// nothing to be left.
func (w *world) fenced() {
	w.t.Helper()
	done := make(chan error, 1)
	go func() { done <- Adopt(w.t.Context(), w.host(), "ns", "vm") }()
	if !eventually(func() bool { return w.query().GetRecord() == string(journal.Fenced) }) {
		w.t.Error("nobody answers for the fence")
	}
	w.records.set(func(rec *nodev1.Record) { rec.Operation = nil })
	w.must("answer for the fence", <-done)
	if !w.gone() {
		w.t.Errorf("left: %+v", w.left())
	}
	w.nothingLeft()
}

func cleanUpOf(w *world, host *Host) error {
	_, err := CleanUp(w.t.Context(), host, w.dir(), "")
	return err
}

func succeedTo(w *world, host *Host) error { return Adopt(w.t.Context(), host, "ns", "vm") }

// I4: of those who clean up after a dead shim at once the first one has the VM, and the other touches nothing. The
// fence that is left answers for the attempt.
func TestCleanUpAndSuccessorAtOnce(t *testing.T) {
	type role func(*world, *Host) error
	for name, c := range map[string]struct {
		first, second role
		refused       bool
	}{
		"cleanup first":   {cleanUpOf, succeedTo, true},
		"successor first": {succeedTo, cleanUpOf, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := fenced(t)
			reached, open := make(chan struct{}), make(chan struct{})
			slow := hookedHost(w.host(), func() { close(reached); <-open })
			done := make(chan error, 1)
			go func() { done <- c.first(w, slow) }()
			select {
			case <-reached:
			case err := <-done:
				t.Fatalf("it frees nothing: %v", err)
			}
			before := w.left()
			if err := c.second(w, w.host()); errdefs.IsAlreadyExists(err) != c.refused || err != nil && !c.refused {
				t.Errorf("the second one: %v", err)
			}
			if now := w.left(); !reflect.DeepEqual(now, before) {
				t.Errorf("the second one wrote %+v over %+v", now, before)
			}
			close(open)
			if c.refused {
				w.must("clean up", <-done)
				if j := w.left(); j.Phase != journal.Fenced || j.Operation == "" || j.Shim.PID != 0 {
					t.Errorf("the fence is %+v", j)
				}
				w.fenced()
				return
			}
			w.records.set(func(rec *nodev1.Record) { rec.Operation = nil })
			w.must("answer for the fence", <-done)
			w.nothingLeft()
		})
	}
}

// If one of them is killed in the midst of it, the next one does the rest.
func TestCleanUpAndSuccessorDie(t *testing.T) {
	for name, first := range map[string]func(*world, *Host) error{"cleanup": cleanUpOf, "successor": succeedTo} {
		t.Run(name, func(t *testing.T) {
			w := fenced(t)
			dead := make(chan struct{})
			go func() {
				defer close(dead)
				_ = first(w, hookedHost(w.host(), runtime.Goexit))
				t.Error("it has come through")
			}()
			<-dead
			j := w.left()
			if j.Phase != journal.Fenced || j.Shim.PID != os.Getpid() || j.Adopted != (name == "successor") {
				t.Errorf("it leaves %+v", j)
			}
			j.Shim = proc.ID{}
			w.must("end its process", j.Write(w.dir()))
			w.must("clean up", cleanUpOf(w, w.host()))
			w.fenced()
		})
	}
}

// What somebody else has taken in the meantime keeps its journal: the last word of who frees a VM
// is for the journal that it has taken.
func TestLastWordIsOfWhoHasTheVM(t *testing.T) {
	w := fenced(t)
	other, err := w.process()
	w.must("start process", err)
	host := hookedHost(w.host(), func() {
		j := w.left()
		j.Shim, j.Operation = other, "newer"
		w.must("take it", j.Write(w.dir()))
	})
	w.must("clean up", cleanUpOf(w, host))
	if j := w.left(); j.Shim != other || j.Operation != "newer" {
		t.Errorf("journal is %+v", j)
	}
}

// containerd has what is left of a shim cleaned up late, after an ordinary end too. A task of
// that name may run by then: it is not touched. A shim that is dying is waited for.
func TestCleanUpOfTheLiving(t *testing.T) {
	wasBound, wasAwait := dyingBound, await
	t.Cleanup(func() { dyingBound, await = wasBound, wasAwait })
	w := newWorld(t).running()
	vm, _ := w.service.current()
	shim, err := w.process()
	w.must("start process", err)
	w.must("name shim", vm.write(func(j *journal.Journal) { j.Shim = shim }))
	dyingBound = time.Millisecond
	pid, err := CleanUp(t.Context(), w.host(), w.dir(), "")
	if err != nil || pid == 0 || !lives(shim) || !lives(w.machine.id) || w.left().Shim != shim {
		t.Fatalf("pid %d, %v; the shim lives: %t, the VMM: %t", pid, err, lives(shim), lives(w.machine.id))
	}
	dyingBound = time.Minute
	await = func(ctx context.Context, id proc.ID) error {
		if err := id.Signal(unix.SIGKILL); err != nil { // it was alive when it was met
			t.Errorf("kill the shim: %v", err)
		}
		return wasAwait(ctx, id)
	}
	w.must("clean up", cleanUpOf(w, w.host()))
	if !w.gone() {
		t.Error("the VM of a shim that was dying is left")
	}
}

// A disk that takes no word does not keep what a dead shim has left from being freed.
func TestCleanUpOnAFullDisk(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	w.must("forget shim", vm.write(func(j *journal.Journal) { j.Shim = proc.ID{} }))
	free := w.full()
	defer free()
	w.must("clean up", cleanUpOf(w, w.host()))
	if lives(w.machine.id) || !w.gone() {
		t.Errorf("the VMM lives: %t; %v", lives(w.machine.id), filepath.Base(w.dir()))
	}
}

// godwitd may put the log of a successor into the directory while that is removed.
func TestCleanUpWithALog(t *testing.T) {
	w := newWorld(t).running()
	removes := removeAll
	t.Cleanup(func() { removeAll = removes })
	late := 2
	removeAll = func(dir string) error {
		if err := removes(dir); dir != w.dir() || late == 0 || err != nil {
			return err
		}
		late--
		w.must("make directory", os.Mkdir(dir, 0o700))
		w.must("write log", os.WriteFile(filepath.Join(dir, "adopt.log"), nil, 0o600))
		return &os.PathError{Op: "unlinkat", Path: dir, Err: unix.ENOTEMPTY}
	}
	w.must("clean up", cleanUpOf(w, w.host()))
	if late > 0 || !w.gone() {
		t.Errorf("%d logs to come; the directory is gone: %t", late, w.gone())
	}
}

// While containerd has what is left of one task cleaned up, the next task of that VM may take it over: its shim is
// older than that clean-up, and is no shim that hangs. Neither is one that is about to write its first journal.
func TestCleanUpOfATaskThatWasReplaced(t *testing.T) {
	const old, next = "/bundles/old", "/bundles/next"
	for name, before := range map[string]string{"the old journal is claimed": old, "a fence is left": ""} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).running()
			shim := w.hangs()
			j := w.left()
			if j.Bundle = before; before == "" {
				j.Phase = journal.Fenced
			}
			w.must("claim", j.Write(w.dir()))
			wasAwait := await
			t.Cleanup(func() { await = wasAwait })
			await = func(ctx context.Context, _ proc.ID) error {
				j := w.left()
				j.Phase, j.Bundle = journal.Own, next
				w.must("write journal", j.Write(w.dir()))
				<-ctx.Done()
				return context.DeadlineExceeded
			}
			pid, err := CleanUp(t.Context(), w.host(), w.dir(), old)
			if err != nil || pid != 0 || !lives(shim) || !lives(w.machine.id) {
				t.Errorf("pid %d, %v; the shim lives: %t, the VMM: %t", pid, err, lives(shim), lives(w.machine.id))
			}
		})
	}
}
