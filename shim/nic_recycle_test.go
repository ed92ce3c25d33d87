package shim

import (
	"encoding/json"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/shim/starts"
)

func init() { resumeRetry = 5 * time.Millisecond }

const theNIC = "add net0 02:00:00:00:00:01 slot 4 running true"

// recycling is a world whose VM sleeps without NICs.
func recycling(t *testing.T) *world {
	w := newWorld(t)
	w.notes = map[string]string{"godwit.dev/nic": "recycle"}
	return w
}

func (w *world) told(want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.machine.nics.told()); diff != "" {
		w.t.Errorf("NICs (-want +got):\n%s", diff)
	}
}

// started answers what the shim noted of its starts for the node's metrics.
func (w *world) started() (all []starts.Observation) {
	data, _ := os.ReadFile(starts.File(w.cfg.StateDir))
	for line := range strings.Lines(string(data)) {
		var o starts.Observation
		w.must("read starts", json.Unmarshal([]byte(line), &o))
		all = append(all, o)
	}
	return all
}

// The NIC goes before the pause and comes back once, after
// the resume, as it was; only then the task is running. Another VM's NIC is
// inherited.
func TestRecycle(t *testing.T) {
	w := recycling(t).running()
	source := w.machine
	w.at("pause", func() error {
		if ids := source.nics.list(); len(ids) > 0 {
			t.Errorf("paused with %v", ids)
		}
		return nil
	})
	r, err := w.capture()
	w.must("capture", err)
	w.told("remove net0")
	if j := w.journal(); !j.Unplugged || !w.store.config.Spec.Recycle {
		t.Errorf("journal says unplugged %v, the snapshot %+v", j.Unplugged, w.store.config.Spec)
	}
	w.asleepBy(r)
	w.at("pause", nil)
	w.at("add NIC", func() error {
		if slices.Contains(w.events.all(), "/tasks/start") {
			t.Error("the task runs before its NIC is there")
		}
		if !w.net.up {
			t.Error("the tap is down")
		}
		return nil
	})
	w.running()
	if len(w.machine.cfg.NICs) != 0 {
		t.Errorf("restored with NICs %+v", w.machine.cfg.NICs)
	}
	w.told(theNIC)
	if j := w.journal(); j.Unplugged || !slices.Equal(j.Process.NICs, []string{"net0"}) {
		t.Errorf("journal after the wake: unplugged %v, NICs %v", j.Unplugged, j.Process.NICs)
	}
	all := w.started()
	if o := all[len(all)-1]; o.Mode != starts.Restore || o.Failed || o.Address.Result != starts.AddressOK {
		t.Errorf("the start is noted as %+v", o)
	}
	w = newWorld(t).asleep().running()
	w.told()
	if len(w.machine.cfg.NICs) != 1 {
		t.Errorf("an ordinary VM was restored with NICs %+v", w.machine.cfg.NICs)
	}
	all = w.started()
	if o := all[len(all)-1]; o.Address.Result != "" {
		t.Errorf("an ordinary wake waited for an address: %+v", o)
	}
}

// A wake that no engine has seen, because a task was created while its VM slept, counts as a wake. So does one that
// fails.
func TestWakesOfTheShimAreNoted(t *testing.T) {
	for fault, want := range map[string]string{"": starts.WakeOK, "fill": starts.WakeFailed,
		"load state": starts.WakeFailed, "restored": starts.WakeLost} {
		w := newWorld(t).asleep()
		if fault != "" {
			w.at(fault, func() error { return errFake })
		}
		err := w.create()
		if err == nil {
			err = w.start()
		}
		if (err == nil) != (fault == "") {
			t.Errorf("%q: %v", fault, err)
		}
		var wakes []string
		restores, failed := 0, 0
		for _, o := range w.started() {
			switch {
			case o.Wake != "":
				wakes = append(wakes, o.Wake)
			case o.Mode == starts.Restore && o.Failed:
				failed++
			case o.Mode == starts.Restore:
				restores++
			}
		}
		if !slices.Equal(wakes, []string{want}) || restores+failed != 1 || (failed == 1) != (fault != "") {
			t.Errorf("%q: wakes %v, %d restores, %d failed ones", fault, wakes, restores, failed)
		}
	}
}

func (w *world) journal() *journal.Journal {
	w.t.Helper()
	j, err := journal.Read(w.cfg.VMDir("ns", "vm"))
	w.must("load journal", err)
	return j
}

// asleepBy ends a hibernate whose capture is done.
func (w *world) asleepBy(r *machinev1.CaptureResponse) {
	w.t.Helper()
	ref := w.ref()
	_, err := w.machineService().Vote(w.t.Context(), &machinev1.VoteRequest{Ref: ref})
	w.must("vote", err)
	w.records.sleep(r.GetDigest())
	_, err = w.machineService().Release(w.t.Context(), &machinev1.ReleaseRequest{Ref: ref, Digest: r.GetDigest()})
	w.must("release", err)
	w.must("delete", w.delete())
	w.nothingLeft()
	w.restart()
}

// Without the guest's word the hibernate fails for good, the VM was never paused and
// has its NIC. If the guest lets go after all, it gets the NIC again.
func TestEjectIsNotAcknowledged(t *testing.T) {
	w := recycling(t).running()
	w.cfg.Timeouts.NIC = config.Duration(20 * time.Millisecond)
	w.machine.nics.deaf = true
	w.at("pause", func() error { t.Error("the VM was paused"); return nil })
	_, err := w.capture()
	if err = errgrpc.ToNative(err); !errdefs.IsFailedPrecondition(err) || errdefs.IsDeadlineExceeded(err) ||
		!strings.Contains(err.Error(), "timeouts.nic") {
		t.Fatalf("capture = %v", err)
	}
	w.told("remove net0")
	vm, _ := w.service.current()
	if j := w.journal(); !vm.inState(Running) || j.Phase != journal.Own || !j.Unplugged ||
		!slices.Equal(w.machine.nics.list(), []string{"net0"}) {
		t.Fatalf("VM is %s, journal %s, unplugged %v, NICs %v", vm.state, j.Phase, j.Unplugged, w.machine.nics.list())
	}
	w.machine.nics.lose("net0")
	if !eventually(func() bool { return len(w.machine.nics.list()) == 1 && !w.journal().Unplugged }) {
		t.Fatal("the NIC does not come back")
	}
	w.told(theNIC)
	w.machine.nics.deaf = false
	w.at("pause", nil)
	_, err = w.capture()
	w.must("capture again", err)
}

// Whichever call of a hibernate fails, the VM runs on with its NIC, and the next
// hibernate succeeds.
func TestRecycleFailsAtEachCall(t *testing.T) {
	for n := 1; ; n++ {
		w := recycling(t).running()
		w.arm(n)
		_, err := w.capture()
		name := w.fired()
		w.arm(0)
		if name == "" {
			w.must("capture", err)
			if n < 6 {
				t.Errorf("only %d calls: the faults are not everywhere", n)
			}
			return
		}
		vm, _ := w.service.current()
		if err == nil {
			t.Errorf("call %d (%s) failed unseen", n, name)
		}
		if !eventually(func() bool { return vm.inState(Running) && len(w.machine.nics.list()) == 1 }) {
			t.Fatalf("call %d (%s): VM is %s, NICs %v", n, name, vm.state, w.machine.nics.list())
		}
		_, err = w.capture()
		w.must("capture again", err)
	}
}

// Of a resume every call may fail too: the NIC comes back while the VM runs.
func TestReplugFailsAtEachCall(t *testing.T) {
	for _, name := range []string{"look for NIC", "open tap", "add NIC", "configure network"} {
		w := recycling(t).running()
		_, err := w.capture()
		w.must("capture", err)
		w.at(name, func() error { return errFake })
		_, err = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
		w.must("abort", err)
		vm, _ := w.service.current()
		if !vm.inState(Running) || !w.journal().Unplugged {
			t.Errorf("%s: VM is %s, unplugged %v", name, vm.state, w.journal().Unplugged)
		}
		w.machine.nics.told()
		<-w.mended(name)
		if !slices.Equal(w.machine.nics.list(), []string{"net0"}) {
			t.Errorf("%s: NICs %v", name, w.machine.nics.list())
		}
		w.aborted++
		_, err = w.capture()
		w.must("capture again", err)
	}
}

// mended has the call that failed so far succeed, and tells when the guest uses its addresses.
func (w *world) mended(name string) <-chan struct{} {
	configured := make(chan struct{}, 100)
	w.at("configure network", func() error { configured <- struct{}{}; return nil })
	if name != "configure network" { // only now: it goes on at once
		w.at(name, nil)
	}
	return configured
}

// A guest's answer to an earlier resume that comes when the next hibernate has taken its NIC
// out says nothing about that NIC: when this hibernate fails too, it comes back.
func TestLateAnswerHidesNoEject(t *testing.T) {
	w := recycling(t).running()
	w.at("add NIC", func() error { return errFake })
	_, err := w.capture()
	w.must("capture", err)
	_, err = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	asked, answer := make(chan struct{}), make(chan struct{})
	var once, ejected sync.Once
	w.at("configure network", func() error {
		once.Do(func() { close(asked) })
		<-answer
		return nil
	})
	w.at("add NIC", nil)
	<-asked
	w.at("remove NIC", func() error { ejected.Do(func() { close(answer) }); return nil })
	w.at("pause", func() error { return errFake })
	w.aborted++
	if _, err = w.capture(); err == nil {
		t.Fatal("the capture did not fail")
	}
	vm, _ := w.service.current()
	if !eventually(func() bool {
		return vm.inState(Running) && len(w.machine.nics.list()) == 1 && !w.journal().Unplugged
	}) {
		t.Errorf("VM is %s, NICs %v, unplugged %v", vm.state, w.machine.nics.list(), w.journal().Unplugged)
	}
}

// A guest that wakes at another address runs before it knows. Until then its NIC works, as some VMMs want it, but no
// frame leaves it.
func TestMuteUntilReaddressed(t *testing.T) {
	w := newWorld(t).asleep()
	w.links[0].NIC.Addresses = []netip.Prefix{netip.MustParsePrefix("10.0.0.77/24")}
	var mu sync.Mutex
	var order []string
	for _, name := range []string{"link mute", "link up", "resume", "restored"} {
		w.at(name, func() error {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
			return nil
		})
	}
	w.running()
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff([]string{"link mute", "resume", "restored", "link up"}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// A wake whose NIC cannot be plugged in, or whose guest does not use it, is a wake all the
// same: it is counted, and tried again while the VM runs.
func TestWakeWithoutAnAddress(t *testing.T) {
	for name, c := range map[string]struct {
		at     string
		err    error
		result string
	}{
		"link": {"link up", errFake, starts.AddressFailed}, "tap": {"open tap", errFake, starts.AddressFailed},
		"VMM":   {"add NIC", errFake, starts.AddressFailed},
		"guest": {"configure network", errdefs.ErrNotFound, starts.AddressTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			w := recycling(t)
			w.cfg.Timeouts.NIC = config.Duration(60 * time.Millisecond)
			w.asleep()
			w.at(c.at, func() error { return c.err })
			w.running()
			all := w.started()
			if o := all[len(all)-1]; o.Failed || o.Address.Result != c.result {
				t.Errorf("the start is noted as %+v", o)
			}
			<-w.mended(c.at)
			w.told(theNIC)
		})
	}
}

// A shim dies when the guest has let go of its NIC and the VM is not paused yet: the
// successor gives the NIC back with the VM. So does the successor of a successor.
func TestShimDiesAfterTheEject(t *testing.T) {
	w := recycling(t).running()
	w.at("pause", func() error { runtime.Goexit(); return nil })
	_, _ = w.capture()
	w.at("pause", nil)
	w.told("remove net0")
	old, _ := w.service.current()
	next := w.succeed(old)
	m := &machineService{find: func() (*VM, error) { return next, nil }}
	_, err := m.Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	w.told(theNIC)
	if !next.inState(Running) || next.journal.Load().Unplugged {
		t.Errorf("VM is %s, unplugged %v", next.state, next.journal.Load().Unplugged)
	}
	w.machine.nics.lose("net0") // as if this one had died before it was done
	w.must("note", next.write(func(j *journal.Journal) { j.Unplugged = true }))
	w.succeed(next)
	w.told(theNIC)
}

// succeed makes vm's shim a dead one.
func (w *world) succeed(vm *VM) *VM {
	w.t.Helper()
	w.must("forget shim", vm.write(func(j *journal.Journal) { j.Shim = proc.ID{} }))
	w.must("unserve", vm.socket.close(vm.life))
	vm.stopTraffic()
	next, err := adoptVM(vm.life, w.host(), vm.namespace, vm.id)
	w.must("adopt", err)
	return next
}
