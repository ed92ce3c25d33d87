package shim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
)

func cfgDuration(d time.Duration) config.Duration { return config.Duration(d) }

const theDigest = "sha256:" + hexDigest

// told is a VM whose workload is told of its snapshots.
func told(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.notes["godwit.dev/notify"] = "/bin/hook"
	return w
}

// hears wants these words, each once and in this order, and nothing left of them.
func (w *world) hears(vm *VM, what string, words ...string) {
	w.t.Helper()
	var want []string
	for _, word := range words {
		want = append(want, "/bin/hook "+word+" "+theDigest)
	}
	if !eventually(func() bool { return len(vm.journal.Load().Notices) == 0 && len(w.agent.kept()) == 0 }) {
		w.t.Fatalf("%s: untold %v, the guest keeps %v", what, vm.journal.Load().Notices, w.agent.kept())
	}
	if got := w.agent.commands(); !slices.Equal(got, want) {
		w.t.Errorf("%s: it heard %q, want %q", what, got, want)
	}
}

// A workload hears that a checkpoint is durable, once, and only after it is.
func TestCheckpointIsTold(t *testing.T) {
	w := told(t).running()
	vm, _ := w.service.current()
	w.store.late = make(chan struct{})
	done := make(chan error, 1)
	go func() { _, err := w.checkpoint(false); done <- err }()
	if !eventually(func() bool { vm.mu.Lock(); defer vm.mu.Unlock(); return vm.op.upload != nil && vm.state == Running }) {
		t.Fatal("the VM does not go on")
	}
	if n := len(w.agent.commands()) + len(vm.journal.Load().Notices); n > 0 {
		t.Errorf("it hears of a snapshot that is not durable: %v", w.agent.commands())
	}
	close(w.store.late)
	w.must("checkpoint", <-done)
	w.hears(vm, "a checkpoint", noticeSnapshotted)
	_, err := w.checkpoint(false)
	w.must("the same order again", err)
	w.hears(vm, "the same order again", noticeSnapshotted)
}

// No call of a checkpoint that fails has the workload hear of one that there is not. A failure in telling it does not
// fail the checkpoint.
func TestCheckpointIsToldFailsAtEachCall(t *testing.T) {
	var taken error
	take := func(w *world) error { _, taken = w.checkpoint(false); return taken }
	failEach(t, func(w *world) {
		w.notes["godwit.dev/notify"] = "/bin/hook"
		w.running()
	}, take, func(t *testing.T, w *world, name string) {
		vm, err := w.service.current()
		if name == "resume" && err == nil && vm.inState(Stopped) {
			return
		}
		w.wantFree(name)
		if name == "start process" && taken != nil {
			t.Errorf("a workload that cannot be told fails the checkpoint: %v", taken)
		}
		var want []string
		if taken == nil && name != "start process" {
			want = []string{noticeSnapshotted}
		}
		w.hears(vm, name, want...)
	})
}

// A VM that wakes hears that the snapshot that it went to sleep with is durable. It hears that it was restored, once
// for each restore. Of a hibernate that was given up it hears nothing.
func TestRestoredIsTold(t *testing.T) {
	w := told(t).running()
	vm, _ := w.service.current()
	_, err := w.capture()
	w.must("capture", err)
	_, err = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	w.wantFree("given up")
	w.hears(vm, "a hibernate that is given up")
	w.aborted = 1
	var want []string
	for range 2 {
		r, err := w.capture()
		w.must("capture", err)
		w.must("vote", w.vote())
		w.asleepBy(r)
		w.hears(vm, "asleep", want...)
		w.must("create", w.create())
		w.must("start", w.start())
		vm, _ = w.service.current()
		want = append(want, noticeSnapshotted, noticeRestored)
		w.hears(vm, "awake", want...)
	}
}

// A VM that comes in a live move is no restored one, and hears nothing.
func TestLiveMoveIsNotTold(t *testing.T) {
	source := newWorld(t)
	source.notes["godwit.dev/notify"], source.notes["godwit.dev/ready"] = "/bin/hook", "/bin/false"
	source.agent.answers = func(int, string) int { return 1 }
	source.running()
	source.open("a", "b")
	w := from(t, source)
	w.must("arrive", w.arrive())
	vm, _ := w.service.current()
	if vm.spec().Notify() == nil {
		t.Fatal("its Spec has lost the annotation")
	}
	if n := len(source.agent.commands()) + len(w.agent.commands()); n > 0 || len(vm.journal.Load().Notices) > 0 {
		t.Errorf("it hears %v, %v, %v", source.agent.commands(), w.agent.commands(), vm.journal.Load().Notices)
	}
}

// A workload that does not want to hear, or cannot, costs its own word only.
func TestWordFails(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		start  error
	}{
		"fails":         {1, nil},
		"hangs":         {-1, nil},
		"no such thing": {0, errors.New("no such file")},
	} {
		t.Run(name, func(t *testing.T) {
			w := told(t).asleep()
			w.cfg.Timeouts.Notify = cfgDuration(100 * time.Millisecond)
			w.agent.answers = func(n int, _ string) int {
				if n == 1 {
					return c.status
				}
				return 0
			}
			calls := 0
			w.at("start process", func() error {
				if calls++; calls == 1 {
					return c.start
				}
				return nil
			})
			w.must("create", w.create())
			w.must("start", w.start())
			vm, _ := w.service.current()
			want := []string{noticeSnapshotted, noticeRestored}
			if c.start != nil {
				want = want[1:]
			}
			w.hears(vm, name, want...)
			w.wantFree(name)
			_, err := w.capture()
			w.must("hibernate after it", err)
		})
	}
}

// An operation does not come into a word: its snapshot would have half of it.
func TestCaptureWaitsForAWord(t *testing.T) {
	w := told(t).asleep()
	w.agent.answers = func(int, string) int { return -1 }
	w.must("create", w.create())
	w.must("start", w.start())
	vm, _ := w.service.current()
	if !eventually(func() bool { return len(w.agent.kept()) == 1 }) {
		t.Fatal("it is not told")
	}
	done := make(chan error, 1)
	go func() { _, err := w.capture(); done <- err }()
	for n := range 2 {
		time.Sleep(20 * time.Millisecond)
		if !vm.inState(Running) {
			t.Errorf("VM is %s while it is told", vm.state)
		}
		if !eventually(func() bool { return len(w.agent.commands()) == n+1 && len(w.agent.kept()) == 1 }) {
			t.Fatalf("word %d is not told", n)
		}
		w.agent.exit(w.agent.kept()[0]) <- 0
		if !eventually(func() bool { return len(vm.journal.Load().Notices) == 1-n }) {
			t.Fatalf("untold: %v", vm.journal.Load().Notices)
		}
	}
	w.must("capture", <-done)
}

// A VM that stands still is told when it goes on, however long that takes.
func TestPausedIsToldLater(t *testing.T) {
	w := told(t).running()
	w.cfg.Timeouts.Notify = cfgDuration(50 * time.Millisecond)
	_, err := w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "vm"})
	w.must("pause", err)
	_, err = w.checkpoint(true)
	w.must("checkpoint", err)
	time.Sleep(100 * time.Millisecond)
	vm, _ := w.service.current()
	if got := w.agent.commands(); len(got) > 0 || len(vm.journal.Load().Notices) != 1 {
		t.Errorf("it hears %v in its pause, %v later", got, vm.journal.Load().Notices)
	}
	_, err = w.service.Resume(ctxNS(t), &taskapi.ResumeRequest{ID: "vm"})
	w.must("resume", err)
	w.hears(vm, "resumed", noticeSnapshotted)
}

// Wherever after the commit the shim of a wake dies, its successor tells the workload, once, what that shim has not.
func TestShimDiesBeforeAWord(t *testing.T) {
	for n := 1; ; n++ {
		w := told(t).asleep()
		old, at := w.halfAwake(n)
		if at == "" || at == "start process" { // which is what tells, after the wake
			if n < 4 {
				t.Errorf("only %d calls: the deaths are not everywhere", n-1)
			}
			return
		}
		next := w.succeed(old)
		(&adoption{vm: next}).finishWake(t.Context())
		w.isAwake(next, at)
		w.hears(next, at, noticeSnapshotted, noticeRestored)
		w.agent.exit("") <- 0
		<-next.owner.init.done
	}
}

// A shim that dies while a word is being told, or after it and before that is noted: the successor waits for the same
// command, and runs none twice. A wake that is taken to its end anew does not end it as an unknown one.
func TestShimDiesInAWord(t *testing.T) {
	for name, waking := range map[string]bool{"in the wake": true, "after it": false} {
		for _, ended := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ended %t", name, ended), func(t *testing.T) {
				w := told(t).asleep()
				w.agent.answers = func(int, string) int { return -1 }
				w.must("create", w.create())
				w.must("start", w.start())
				old, _ := w.service.current()
				if !eventually(func() bool { return len(w.agent.kept()) == 1 }) {
					t.Fatal("it is not told")
				}
				id := w.agent.kept()[0]
				old.stopTraffic()
				w.agent.answers = nil
				if ended {
					w.agent.exit(id) <- 0
				}
				w.must("mark", old.write(func(j *journal.Journal) {
					j.Waking, j.Adopted, j.Resume.BootID, j.Shim = waking, !waking, w.agent.boot, proc.ID{}
				}))
				next := w.succeed(old)
				(&adoption{vm: next}).finishWake(t.Context())
				if !ended {
					if !eventually(func() bool { return next.inState(Running) }) {
						t.Fatalf("VM is %s", next.state)
					}
					for _, said := range w.agent.heard() {
						if strings.HasPrefix(said, "kill") {
							t.Errorf("said: %s", said)
						}
					}
					w.agent.exit(id) <- 0
				}
				w.hears(next, name, noticeSnapshotted, noticeRestored)
			})
		}
	}
}

// A word that cannot be noted as told is told once all the same.
func TestWordIsNotNoted(t *testing.T) {
	w := told(t).running()
	vm, _ := w.service.current()
	w.agent.answers = func(int, string) int { return -1 }
	_, err := w.checkpoint(false)
	w.must("checkpoint", err)
	if !eventually(func() bool { return len(w.agent.kept()) == 1 }) {
		t.Fatal("it is not told")
	}
	fails, sync := 3, durable.SyncDir
	t.Cleanup(func() { vm.stopTraffic(); durable.SyncDir = sync })
	_ = vm.journal.Update(func(*journal.Journal) error { // while nothing is written
		durable.SyncDir = func(dir string) error {
			if fails--; fails >= 0 {
				return errFake
			}
			return sync(dir)
		}
		return errFake
	})
	w.agent.exit(w.agent.kept()[0]) <- 0
	w.hears(vm, "noted late", noticeSnapshotted)
}
