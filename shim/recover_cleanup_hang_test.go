package shim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/network"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
)

// hangs has a stopped process be the VM's shim, which is older than the one that cleans up.
func (w *world) hangs() proc.ID {
	w.t.Helper()
	bound, own, ends := dyingBound, ownID, kill
	w.t.Cleanup(func() { dyingBound, ownID, kill = bound, own, ends })
	shim, err := w.process()
	w.must("start process", err)
	w.must("stop it", shim.Stop(w.t.Context()))
	j := w.left()
	j.Shim = shim
	w.must("name shim", j.Write(w.dir()))
	dyingBound = time.Millisecond
	ownID = func() (proc.ID, error) {
		return proc.ID{PID: os.Getpid(), StartTime: shim.StartTime + 1, Boot: shim.Boot}, nil
	}
	return shim
}

// holding is what a VM has on its node in addition to its processes.
func (w *world) holding() []string {
	w.t.Helper()
	var all []string
	for _, pattern := range []string{filepath.Join(w.cfg.RAMDir, "[^.]*"), w.cfg.VMRunDir("ns", "vm"),
		filepath.Join(w.dir(), "*")} {
		found, err := filepath.Glob(pattern)
		w.must("list", err)
		all = append(all, found...)
	}
	if w.net.attached {
		all = append(all, "network")
	}
	return all
}

// A shim that hangs is dead before anything of its VM is freed: let go on later, it finds
// nothing to write to.
func TestCleanUpAfterAShimThatHangs(t *testing.T) {
	w := newWorld(t).running()
	shim := w.hangs()
	all := w.holding()
	ends := kill
	kill = func(ctx context.Context, id proc.ID) error {
		switch now := w.holding(); {
		case !reflect.DeepEqual(now, all):
			t.Errorf("before process %d is killed %v of %v is left", id.PID, now, all)
		case id == shim && !lives(w.machine.id):
			t.Error("the VMM was killed while the shim lives")
		case id != shim && lives(shim):
			t.Error("the shim lives when its VMM is killed")
		}
		return ends(ctx, id)
	}
	pid, err := CleanUp(t.Context(), w.host(), w.dir(), "")
	if err != nil || pid == 0 || !w.gone() {
		t.Errorf("pid %d, %v; left: %v", pid, err, w.holding())
	}
	w.nothingLeft()
	if err := shim.Signal(unix.SIGCONT); !errors.Is(err, os.ErrProcessDone) && lives(shim) {
		t.Errorf("the shim goes on: %v", err)
	}
}

// I4: the fence of a shim that hangs answers for its attempt all the same.
func TestCleanUpAfterAFencedShimThatHangs(t *testing.T) {
	w := fenced(t)
	shim := w.hangs()
	w.must("clean up", cleanUpOf(w, w.host()))
	if j := w.left(); lives(shim) || j.Phase != journal.Fenced || j.Operation == "" || j.Shim.PID != 0 {
		t.Errorf("the shim lives: %t; the fence is %+v", lives(shim), j)
	}
	w.fenced()
}

// What a shim that hangs wrote before its end came, and who took its VM then, decides as it does where a shim has died:
// a source that has voted keeps its VM for its successor (R2), and so does a VM that wakes.
func TestCleanUpLooksAfterTheEndOfAShimThatHangs(t *testing.T) {
	held := func(phase journal.Phase) func(*journal.Journal) {
		return func(j *journal.Journal) { j.Phase, j.Operation, j.Attempt = phase, "op1", 1 }
	}
	for name, change := range map[string]func(*journal.Journal){
		"sends":    held(journal.Sending),
		"voted":    held(journal.Prepared),
		"comes":    held(journal.Incoming),
		"ready":    held(journal.Ready),
		"wakes":    func(j *journal.Journal) { j.Waking = true },
		"adopted":  func(j *journal.Journal) { j.Adopted = true },
		"new task": nil,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).running()
			shim := w.hangs()
			if change == nil {
				var other proc.ID
				if !eventually(func() bool {
					var err error
					other, err = w.process()
					w.must("start process", err)
					return other.StartTime > shim.StartTime
				}) {
					t.Fatal("no process is newer")
				}
				change = func(j *journal.Journal) { j.Shim = other }
			}
			ends := kill
			var written *journal.Journal
			kill = func(ctx context.Context, id proc.ID) error {
				if id != shim {
					t.Errorf("process %d is killed", id.PID)
				}
				j := w.left()
				change(j)
				w.must("write journal", j.Write(w.dir()))
				written = w.left()
				return ends(ctx, id)
			}
			all := w.holding()
			pid, err := CleanUp(t.Context(), w.host(), w.dir(), "")
			if err != nil || pid == 0 || lives(shim) || !lives(w.machine.id) {
				t.Errorf("pid %d, %v; the shim lives: %t, the VMM: %t", pid, err, lives(shim), lives(w.machine.id))
			}
			if now := w.left(); !reflect.DeepEqual(now, written) || !reflect.DeepEqual(w.holding(), all) {
				t.Errorf("journal %+v, was %+v; %v is left of %v", now, written, w.holding(), all)
			}
		})
	}
}

// A shim that hangs while an operation holds its VM is left to that operation.
func TestCleanUpLeavesAShimThatHangsInAnOperation(t *testing.T) {
	w := newWorld(t).running()
	_, err := w.capture()
	w.must("capture", err)
	shim := w.hangs()
	before := w.left()
	pid, err := CleanUp(t.Context(), w.host(), w.dir(), "")
	if err != nil || pid == 0 || !lives(shim) || !lives(w.machine.id) || !reflect.DeepEqual(w.left(), before) {
		t.Errorf("pid %d, %v; the shim lives: %t, the VMM: %t; journal %+v", pid, err, lives(shim), lives(w.machine.id),
			w.left())
	}
}

// failing disks and network count their part of a cleanup as a call.
type (
	failingDisks struct {
		Disks
		call func(string) error
	}
	failingNetwork struct {
		Network
		call func(string) error
	}
)

func (d failingDisks) Cleanup(ctx context.Context, dir string) error {
	if err := d.call("free disks"); err != nil {
		return err
	}
	return d.Disks.Cleanup(ctx, dir)
}

func (n failingNetwork) Detach(ctx context.Context, netns string, links []network.Link) error {
	if err := n.call("detach network"); err != nil {
		return err
	}
	return n.Network.Detach(ctx, netns, links)
}

// Whatever fails in a cleanup, the next one does the rest. A process that does not end, shim or
// VMM, keeps all that it may use, and the error says so.
func TestCleanUpFailsAtEachStep(t *testing.T) {
	var steps []string
	for n := 1; ; n++ {
		w := newWorld(t).running()
		shim := w.hangs()
		ends := kill
		kill = func(ctx context.Context, id proc.ID) error {
			what := "kill VMM"
			if id == shim {
				what = "kill shim"
			}
			if err := w.call(what); err != nil {
				return err
			}
			return ends(ctx, id)
		}
		own := *w.host()
		own.Disks, own.Network = failingDisks{own.Disks, w.call}, failingNetwork{own.Network, w.call}
		all, before := w.holding(), w.left()
		w.arm(n)
		err := cleanUpOf(w, &own)
		at := w.fired()
		if at == "" {
			w.must("clean up", err)
			w.nothingLeft()
			break
		}
		steps = append(steps, at)
		switch at {
		case "kill shim":
			if !errors.Is(err, errFake) || !lives(shim) || !lives(w.machine.id) || !reflect.DeepEqual(w.left(), before) ||
				!reflect.DeepEqual(w.holding(), all) {
				t.Errorf("%s: %v; journal %+v, %v is left of %v", at, err, w.left(), w.holding(), all)
			}
		case "kill VMM":
			if !errors.Is(err, errFake) || lives(shim) || !reflect.DeepEqual(w.holding(), all) {
				t.Errorf("%s: %v; %v is left of %v", at, err, w.holding(), all)
			}
		case "end ownership": // the node stays the owner
			w.must(at, err)
		default:
			if !errors.Is(err, errFake) || w.gone() {
				t.Errorf("%s: %v; the journal is gone: %t", at, err, w.gone())
			}
		}
		if at == "detach network" {
			w.net.attached = false // with the last process of the VM its network namespace goes
		}
		w.arm(0)
		w.must("clean up again, after "+at, cleanUpOf(w, w.host()))
		w.nothingLeft()
		kill = ends
	}
	if want := []string{"kill shim", "kill VMM", "detach network", "free disks", "end ownership"}; !reflect.DeepEqual(
		steps, want) {
		t.Errorf("it failed at %q, want %q", steps, want)
	}
}
