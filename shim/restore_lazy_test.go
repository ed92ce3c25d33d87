package shim

import (
	"context"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/events"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/shim/tracking"
	"godwit.dev/godwit/snapshot/track"
	"godwit.dev/godwit/vmm"
)

// fakeLazy is a kernel that has VMs wait for RAM.
type fakeLazy struct {
	*world
	cannot   error
	remapped atomic.Bool // by the VMM
	dies     atomic.Bool // the shim, as no page is waited for any more
}

func (l *fakeLazy) Probe(context.Context) error { return l.cannot }

func (l *fakeLazy) Expect(vmm.Process, *os.File) error { return l.call("expect") }

func (l *fakeLazy) Open(vmm.Process, *os.File) (*os.File, []track.Region, error) {
	if l.remapped.Load() {
		return nil, nil, track.ErrRemapped
	}
	f, err := os.Open(os.DevNull)
	return f, nil, err
}

// Whole wants a VM that stands still.
func (l *fakeLazy) Whole(vmm.Process, *os.File) error {
	if l.machine.running() {
		l.t.Error("the wait for RAM ends while the VM runs")
	}
	if j := l.journal(); j.Armed || j.Postcopy == nil {
		l.t.Errorf("a shim that dies here leaves notes that are not to be trusted: %+v", j)
	}
	if l.dies.Load() {
		l.remapped.Store(true)
		runtime.Goexit()
	}
	return nil
}

// lazily is a VM asleep on a node where RAM comes while it runs, and does not before come is
// called.
func lazily(t *testing.T) (w *world, come func()) { return newWorld(t).lazily() }

func (w *world) lazily() (_ *world, come func()) {
	t := w.asleep().t
	w.lazy = &fakeLazy{world: w}
	w.tracking = func(context.Context) tracking.Choice { return tracking.Choice{Way: track.UFFD} }
	w.cfg.Worker.Restore = config.RestoreLazy
	w.store.pages = make(chan struct{})
	moment, longest := idleMoment, longestDefer
	idleMoment, longestDefer = time.Millisecond, 2*time.Millisecond
	t.Cleanup(func() { idleMoment, longestDefer = moment, longest })
	return w, func() { close(w.store.pages) }
}

// The guest of a lazy wake is spoken to once it wants no page any more, since it runs: what was so
// before does not count.
func TestLazyWakeIsLeftAlone(t *testing.T) {
	w, come := lazily(t)
	longestDefer = time.Hour
	w.store.settles = make(chan func())
	defer close(w.store.settles)
	var settled, runs atomic.Bool
	early := make(chan struct{})
	w.at("resume", func() error { <-early; runs.Store(true); return nil })
	w.at("dial", func() error {
		if !settled.Load() {
			t.Error("the guest was spoken to while it wants pages")
		}
		return nil
	})
	w.must("create", w.create())
	started := make(chan error, 1)
	go func() { started <- w.start() }()
	w.store.settles <- func() { close(early) } // before it runs
	if !eventually(runs.Load) {
		t.Fatal("the VM does not run")
	}
	select {
	case err := <-started:
		t.Fatalf("started while the guest wants pages: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	settled.Store(true)
	w.store.settles <- func() {}
	w.must("start", <-started)
	come()
	if !eventually(func() bool { return w.journal().Postcopy == nil }) {
		t.Error("RAM is never whole")
	}
}

func (w *world) restoring() string {
	q, err := w.machineService().Query(w.t.Context(), nil)
	w.must("query", err)
	return q.GetRestore()
}

// A VM runs while its RAM comes; what takes a snapshot of it waits, and everything else works.
func TestLazyRestore(t *testing.T) {
	w, come := lazily(t)
	w.store.lacks, w.store.dead = "the registry is away", 2
	w.running()
	if w.machine.cfg.Track != vmm.TrackPages || !w.machine.running() || w.journal().Postcopy == nil {
		t.Fatalf("VMM %+v, journal %+v", w.machine.cfg, w.journal())
	}
	if !eventually(func() bool { return w.restoring() == "lazy, 1 of 2 MiB, waits: the registry is away" }) {
		t.Errorf("restore is %q", w.restoring())
	}
	_, err := w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "vm"})
	w.must("pause", err)
	_, err = w.service.Resume(ctxNS(t), &taskapi.ResumeRequest{ID: "vm"})
	w.must("resume", err)

	soon, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = w.machineService().Capture(soon, &machinev1.CaptureRequest{Ref: w.ref(), Repository: "r"})
	if err == nil || !strings.Contains(err.Error(), "wait until its RAM has come") {
		t.Errorf("a capture that is called off: %v", err)
	}
	_, err = w.machineService().Capture(t.Context(), &machinev1.CaptureRequest{Ref: w.ref(), Repository: "r",
		TimeoutMs: 1})
	if err == nil || !strings.Contains(err.Error(), "registry is away") {
		t.Errorf("a capture that has little time: %v", err)
	}
	captured := make(chan error, 1)
	go func() { _, err := w.capture(); captured <- err }()
	w.at("push pages", func() error {
		if w.restoring() != "" {
			t.Error("half a VM is captured")
		}
		return nil
	})
	come()
	w.must("capture", <-captured)
	if w.store.fills != 3 {
		t.Errorf("%d workers brought RAM, two of them died", w.store.fills)
	}
	told := func() bool {
		w.events.mu.Lock()
		defer w.events.mu.Unlock()
		return slices.Contains(w.events.topics, events.WaitsTopic)
	}
	if !eventually(told) {
		t.Error("no event tells of a VM that waits")
	}
	if w.journal().Postcopy != nil {
		t.Errorf("journal %+v", w.journal())
	}
}

// The end of the fill leaves notes that count, of a VM that is paused too.
func TestLazyRestoreEnds(t *testing.T) {
	for _, paused := range []bool{false, true} {
		w, come := lazily(t)
		w.running()
		if paused {
			_, err := w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "vm"})
			w.must("pause", err)
			w.must("let run what is paused", w.machine.Resume(t.Context())) // an order that QEMU obeys late
		}
		come()
		if !eventually(func() bool { j := w.journal(); return j.Postcopy == nil && j.Armed && w.restoring() == "" }) {
			t.Fatalf("journal %+v, restore %q", w.journal(), w.restoring())
		}
		if w.machine.running() == paused {
			t.Errorf("paused %v: vCPUs run: %v", paused, !paused)
		}
	}
}

// A worker that dies once RAM is whole is the last one.
func TestWorkerDiesAfterAFill(t *testing.T) {
	w, come := lazily(t)
	w.store.spent = true
	w.running()
	vm, err := w.service.current()
	w.must("find", err)
	f := vm.postcopy.filling()
	come()
	<-f.over
	if w.store.fills != 1 || vm.postcopy.filling() != nil || w.journal().Postcopy != nil {
		t.Errorf("%d workers, journal %+v", w.store.fills, w.journal())
	}
	_, err = w.capture()
	w.must("capture", err)
}

// What cannot be is refused by name, before anything is reserved, and nothing is lost.
func TestLazyRestoreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(*world)
		want    string
	}{
		"VMM":      {func(w *world) { w.hasty = true }, "VMM fake reads RAM"},
		"tracking": {func(w *world) { w.tracking = nil }, "worker.tracking"},
		"kernel":   {func(w *world) { w.lazy = &fakeLazy{world: w, cannot: errFake} }, "this kernel cannot"},
		"build":    {func(w *world) { w.lazy = nil }, "this build"},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := lazily(t)
			c.prepare(w)
			err := errgrpc.ToNative(w.create())
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), "worker.restore") {
				t.Fatalf("create = %v", err)
			}
			w.nothingLeft()
			if w.records.rec.GetOwner().GetDigest() == "" {
				t.Error("the snapshot is not the owner any more")
			}
			w.notes["godwit.dev/restore"] = config.RestoreEager
			w.running()
			if w.restoring() != "" || w.journal().Postcopy != nil {
				t.Errorf("eager by order, and restore is %q", w.restoring())
			}
		})
	}
}

// Whatever fails before the VM runs gives it back to its snapshot.
func TestLazyRestoreFailsAtEachCall(t *testing.T) {
	prepare := func(w *world) {
		w.asleep()
		w.lazy, w.cfg.Worker.Restore = &fakeLazy{world: w}, config.RestoreLazy
		w.tracking = func(context.Context) tracking.Choice { return tracking.Choice{Way: track.UFFD} }
		w.store.pages = make(chan struct{})
		w.must("create", w.create())
	}
	failEach(t, prepare, (*world).start, func(t *testing.T, w *world, name string) {
		if vm, err := w.service.current(); err != nil || vm.inState(Running) {
			return // closing the operation failed: the VM runs, the record is committed
		}
		ran := w.records.phase == nodev1.Phase_PHASE_LOST_AT_DEST
		if asleep := w.records.rec.GetOwner().GetDigest() != ""; asleep == ran {
			t.Errorf("%s failed: asleep %v, phase %v", name, asleep, w.records.phase)
		}
		w.must("delete", w.delete())
		w.nothingLeft()
	})
}

// Wherever after the commit the shim dies, its successor brings the rest.
func TestShimDiesInALazyWake(t *testing.T) {
	for n := 1; ; n++ {
		w, come := lazily(t)
		old, at := w.halfAwake(n)
		if at == "" {
			if n < 4 {
				t.Errorf("only %d calls: the deaths are not everywhere", n-1)
			}
			return
		}
		if j := w.journal(); j.Postcopy == nil || !j.Waking {
			t.Fatalf("%s: journal %+v", at, j)
		}
		if f := old.postcopy.filling(); f != nil { // its workers die with it
			f.cancel()
			<-f.over
		}
		w.must("forget shim", old.write(func(j *journal.Journal) { j.Shim = proc.ID{} }))
		next := w.succeed(old)
		(&adoption{vm: next}).finishWake(t.Context())
		w.isAwake(next, at)
		if next.postcopy.filling() == nil {
			t.Errorf("%s: nobody brings RAM", at)
		}
		come()
		if !eventually(func() bool { return next.postcopy.filling() == nil && w.journal().Postcopy == nil }) {
			t.Errorf("%s: RAM is never whole", at)
		}
		w.agent.exit("") <- 0
		<-next.owner.init.done
	}
}

// A VM that is killed while it waits is gone at once. No worker brings it pages any more when its VMM is killed.
func TestKillOfAVMThatWaits(t *testing.T) {
	w, _ := lazily(t)
	w.running()
	vm, err := w.service.current()
	w.must("find", err)
	f := vm.postcopy.filling()
	var asked atomic.Bool // the cleanup after the VMM kills it once more
	w.machine.mu.Lock()
	w.machine.dies = func() { asked.Store(!f.incomplete()) }
	w.machine.mu.Unlock()
	vm.ending.end(t.Context(), killed, vm.origin.resumed)
	if !asked.Load() {
		t.Error("the VMM was killed while pages were brought, or not at all")
	}
	w.must("delete", w.delete())
	w.nothingLeft()
}

// A guest that does not answer once all its pages are there fails the Start, as any other.
func TestSilentGuestOfALazyWake(t *testing.T) {
	w, come := lazily(t)
	w.cfg.Timeouts.Boot = config.Duration(50 * time.Millisecond)
	once := sync.OnceFunc(come)
	w.at("dial", func() error { once(); return errFake })
	w.must("create", w.create())
	if err := w.start(); err == nil {
		t.Error("a guest that nobody has met was started")
	}
	w.must("delete", w.delete())
	w.nothingLeft()
}

// The bound of a Start begins when all pages are there, and what extends it counts.
func TestBoundOfALazyWake(t *testing.T) {
	w := newWorld(t)
	w.cfg.Timeouts.Boot = config.Duration(time.Millisecond)
	vm := &VM{host: w.host(), life: t.Context(),
		postcopy: &postcopy{fill: &filling{here: make(chan struct{}), over: make(chan struct{})}}}
	s := &starting{vm: vm, task: vm.owner}
	aborted := make(chan time.Time)
	go s.boundAfterFill(func() { aborted <- time.Now() })()
	select {
	case <-aborted:
		t.Fatal("aborted while pages are late")
	case <-time.After(20 * time.Millisecond):
	}
	const more = 200 * time.Millisecond
	begun := time.Now()
	s.extend(more)
	close(vm.postcopy.filling().here)
	select {
	case at := <-aborted:
		if at.Sub(begun) < more {
			t.Errorf("aborted after %v of %v", at.Sub(begun), more)
		}
	case <-time.After(time.Minute):
		t.Fatal("never aborted")
	}
}
