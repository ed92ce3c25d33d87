package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/fdtest"
	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/vmm"
)

// A caller that wants to clear, end, adopt or boot a VM may be unable to see whether its processes live. It gets
// Unavailable, touches nothing, and may ask again.
func TestUnknownDecidesNothing(t *testing.T) {
	w := newWorld(t)
	shim, err := w.process()
	w.must("start process", err)
	vmm1, err := w.process()
	w.must("start process", err)
	p := &vmm.Process{PID: vmm1.PID, StartTime: vmm1.StartTime, Boot: vmm1.Boot}
	host := w.host()
	c := &creation{host: host}
	decide := map[string]func(*journal.Journal) error{
		"create":       func(j *journal.Journal) error { return c.clearable(t.Context(), j) },
		"clean up":     host.checkAbandoned,
		"adopt":        checkAdoptable,
		"forget":       checkUnowned,
		"adopt forgot": checkForgotten,
		"detach":       func(j *journal.Journal) error { return detach(t.Context(), host, j, w.links) },
		"reclaim":      func(j *journal.Journal) error { return releaseResources(t.Context(), host, t.TempDir(), j) },
		"resume a hold": func(j *journal.Journal) error {
			return (&adoption{vm: &VM{host: host}, j: j}).resumeHold(t.Context())
		},
	}
	held := journal.Resources{Shim: shim, Process: p, Holder: shim, NetNS: "/proc/1/ns/net"}
	for name, j := range map[string]journal.Journal{
		"runs":   {Phase: journal.Own, Resources: held},
		"wakes":  {Phase: journal.Own, Resources: held, Task: journal.Task{Waking: true}},
		"fenced": {Phase: journal.Fenced, Resources: held},
	} {
		for call, fn := range decide {
			j := j
			j.Spec = &spec.Spec{Namespace: "ns", ID: "vm"}
			before := j
			if call == "resume a hold" {
				j.Phase, before.Phase = journal.Sending, journal.Sending
			}
			w.net.detached, j.RAM = "", filepath.Join(t.TempDir(), "ram")
			w.must("make RAM", os.WriteFile(j.RAM, nil, 0o600))
			restore := fdtest.Exhaust(t, 0)
			err := fn(&j)
			restore()
			if !errdefs.IsUnavailable(err) || !errors.Is(err, proc.ErrUnknown) {
				t.Errorf("%s of a VM that %s, without descriptors = %v, want Unavailable", call, name, err)
			}
			if j.Adopted != before.Adopted || j.Phase != before.Phase || w.net.detached != "" {
				t.Errorf("%s of a VM that %s changed it: %+v, detached %q", call, name, j, w.net.detached)
			}
			if _, err := os.Stat(j.RAM); err != nil {
				t.Errorf("%s of a VM that %s has freed RAM that its VMM may have: %v", call, name, err)
			}
			if !lives(shim) || !lives(vmm1) {
				t.Fatalf("%s of a VM that %s killed a process", call, name)
			}
		}
	}
}

// hears tells of a log line and drops the others.
type hears struct {
	slog.Handler
	line  string
	heard func()
}

func (h hears) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.line {
		h.heard()
	}
	return nil
}
func (h hears) WithAttrs([]slog.Attr) slog.Handler { return h }

// A VM that is given back to a node without descriptors is not killed for that: it stands still until
// there are some, and runs on.
func TestResumeWithoutDescriptors(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	_, err := w.capture()
	w.must("capture", err)
	var restore func()
	tries := 0
	var again error
	vm.log = slog.New(hears{slog.NewTextHandler(io.Discard, nil), "resume: the host lacks something, or the VMM is " +
		"slow; it is tried again", func() {
		if tries++; tries == 2 {
			_, again = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
		}
		if tries == 3 {
			restore()
		}
	}})
	restore = fdtest.Exhaust(t, 0)
	_, err = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	restore()
	w.must("abort", err)
	if tries < 3 {
		t.Errorf("it was tried %d times without descriptors", tries)
	}
	if again = errgrpc.ToNative(again); !errdefs.IsUnavailable(again) {
		t.Errorf("another abort meanwhile = %v, want Unavailable", again)
	}
	if !vm.inState(Running) || !w.machine.running() || !lives(w.machine.id) {
		t.Errorf("VM is %s, runs %t, its VMM lives: %t", vm.state, w.machine.running(), lives(w.machine.id))
	}
}

// The pause of a checkpoint on a node without descriptors lasts until there are some. The VM runs on after it.
func TestCheckpointWithoutDescriptors(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	restore, tries := func() {}, 0
	t.Cleanup(func() { restore() })
	vm.log = slog.New(hears{slog.NewTextHandler(io.Discard, nil), "resume: the host lacks something, or the VMM is " +
		"slow; it is tried again", func() {
		if tries++; tries == 3 {
			restore()
		}
	}})
	w.at("push", func() error { restore = fdtest.Exhaust(t, 0); return nil })
	_, err := w.checkpoint(false)
	restore()
	w.must("checkpoint", err)
	if tries != 3 {
		t.Errorf("it was tried %d times without descriptors", tries)
	}
	w.wantFree("after it")
	if !lives(w.machine.id) {
		t.Error("its VMM is dead")
	}
}

// A wake that is committed to a node which lacks descriptors for a moment runs nothing yet, and ends nothing. It goes
// on when there are some.
func TestWakeWithoutDescriptors(t *testing.T) {
	for _, call := range []string{"link up", "resume"} {
		w := newWorld(t).asleep()
		w.must("create", w.create())
		tries := 0
		w.at(call, func() error {
			if tries++; tries < 3 {
				return fmt.Errorf("%w: %w", vmm.ErrNotResumed, unix.EMFILE)
			}
			return nil
		})
		err := w.start()
		w.must(call, err)
		if tries < 3 || !w.machine.running() {
			t.Errorf("%s was tried %d times; the VM runs: %t", call, tries, w.machine.running())
		}
	}
}

// A journal that cannot be read may be of a VM in the same cgroup: no process in there is killed.
func TestReclaimSparesWhoMayBeInTheCgroup(t *testing.T) {
	w := newWorld(t)
	first, second := w.cfg.VMDir("ns", "first"), w.cfg.VMDir("other", "second")
	id, err := w.process()
	w.must("start process", err)
	root := t.TempDir()
	files(t, root, map[string]string{"cgroup.procs": "", "vms/cgroup.procs": strconv.Itoa(id.PID)})
	dirs := []string{filepath.Join(root, "vms")}
	j := &journal.Journal{Phase: journal.Own, Resources: journal.Resources{Cgroup: dirs, Private: dirs}}
	w.must("write journal", j.Write(first))
	w.must("make what cannot be read", os.MkdirAll(journal.File(second), 0o700))
	if err := reclaim(t.Context(), w.host(), first, j); err == nil {
		t.Error("the first was reclaimed whole")
	}
	if _, err := journal.Read(first); err != nil || !lives(id) {
		t.Errorf("the second VM's process lives: %t; the first one's journal: %v", lives(id), err)
	}
	for left := range 3 {
		restore := fdtest.Exhaust(t, left)
		private, err := unshared(first, dirs)
		restore()
		if err == nil {
			t.Errorf("with %d descriptors the cgroup is the first VM's alone: %v", left, private)
		}
	}
	w.must("forget the second", os.RemoveAll(second))
}

// started runs a shell that waits, with these arguments after its script.
func started(t *testing.T, dir string, args ...string) proc.ID {
	t.Helper()
	cmd := exec.Command("/bin/sh", args...)
	cmd.Dir = dir
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdin.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	id, err := proc.Find(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A journal of an earlier build does not say of which boot its processes are. One that has such a pid and
// start time today is the VM's if it says so itself: a shim by the VM's name, a VMM by the VM's RAM. Any
// other one lives on, and the VM's counts as gone.
func TestJournalWithoutBoot(t *testing.T) {
	dir := t.TempDir()
	files(t, dir, map[string]string{"holder": "read x"})
	wait := []string{"-c", "read x; exit", "sh"}
	ours := started(t, dir, append(wait, "-namespace", "ns", "-id", "vm")...)
	theirs := started(t, dir, append(wait, "-namespace", "ns", "-id", "other")...)
	stranger := started(t, dir, wait...)
	held := started(t, dir, "holder")
	shell, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(ours.PID), "exe"))
	if err != nil {
		t.Fatal(err)
	}
	sp := &spec.Spec{Namespace: "ns", ID: "vm"}
	old := func(id proc.ID) proc.ID { id.Boot = ""; return id }
	process := func(id proc.ID) *vmm.Process { return &vmm.Process{PID: id.PID, StartTime: id.StartTime} }
	for name, c := range map[string]struct {
		id            proc.ID
		alive, unsure bool
	}{
		"its shim": {id: shimOf(&journal.Journal{Resources: journal.Resources{Spec: sp, Shim: old(ours)}}),
			alive: true},
		"another VM's shim": {id: shimOf(
			&journal.Journal{Resources: journal.Resources{Spec: sp, Shim: old(theirs)}})},
		"no shim": {id: shimOf(
			&journal.Journal{Resources: journal.Resources{Spec: sp, Shim: old(stranger)}})},
		"a shim, of a fence": {id: shimOf(&journal.Journal{Resources: journal.Resources{Shim: old(ours)}}),
			unsure: true},
		"no shim, of a fence": {id: shimOf(&journal.Journal{Resources: journal.Resources{Shim: old(stranger)}})},
		"a holder": {id: sandboxOf(&journal.Journal{Resources: journal.Resources{Holder: old(held)}}),
			alive: true},
		"no holder": {id: sandboxOf(&journal.Journal{Resources: journal.Resources{Holder: old(stranger)}})},
		"a VMM with the VM's RAM": {id: vmmOf(
			&journal.Journal{Resources: journal.Resources{RAM: shell, Process: process(ours)}}), alive: true},
		"a process without the RAM": {id: vmmOf(&journal.Journal{Resources: journal.Resources{RAM: shell + ".other",
			Process: process(ours)}})},
		"a VMM, of RAM unknown": {id: vmmOf(&journal.Journal{Resources: journal.Resources{Process: process(ours)}}),
			unsure: true},
		"no VMM": {id: vmmOf(&journal.Journal{})},
	} {
		alive, err := c.id.Alive()
		if alive != c.alive || errdefs.IsUnavailable(err) != c.unsure || (err != nil) != c.unsure {
			t.Errorf("%s: alive %t, %v; want %t, unsure %t", name, alive, err, c.alive, c.unsure)
		}
	}
	j := &journal.Journal{Resources: journal.Resources{Spec: sp, Shim: old(ours)}}
	restore := fdtest.Exhaust(t, 0)
	shim := shimOf(j)
	restore()
	if _, err := shim.Alive(); !errdefs.IsUnavailable(err) {
		t.Errorf("a shim that could not be looked at: %v", err)
	}
	w := newWorld(t)
	left := &journal.Journal{Phase: journal.Own, Resources: journal.Resources{Spec: sp, Shim: old(theirs),
		Holder: old(stranger), Process: process(stranger), RAM: filepath.Join(dir, "ram")}}
	w.must("clean up what another boot has left", w.host().checkAbandoned(left))
	w.must("free", releaseResources(t.Context(), w.host(), t.TempDir(), left))
	for _, id := range []proc.ID{theirs, stranger} {
		if !lives(id) {
			t.Errorf("process %d, which is not the VM's, was killed", id.PID)
		}
	}
}

// lives reports whether a process does, which in a test is always known.
func lives(id proc.ID) bool {
	alive, err := id.Alive()
	if err != nil {
		panic(err)
	}
	return alive
}

// A VM whose RAM cannot be looked at is not captured and not offered, and runs on.
func TestCaptureWhereRAMCannotBeLookedAt(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	dir := w.cfg.RAMDir
	vm.host.Config.RAMDir = filepath.Join(t.TempDir(), "gone")
	_, err := w.capture()
	_, offer := w.machineService().Offer(t.Context(), &machinev1.OfferRequest{Ref: w.ref()})
	vm.host.Config.RAMDir = dir
	for call, err := range map[string]error{"capture": err, "offer": offer} {
		if err := errgrpc.ToNative(err); !errdefs.IsUnavailable(err) {
			t.Errorf("%s = %v, want Unavailable", call, err)
		}
	}
	if !vm.inState(Running) || !w.machine.running() {
		t.Errorf("VM is %s", vm.state)
	}
}

// Figures that cannot be read, and those of a guest that has never answered, are Unavailable and not 0.
func TestStatsThatAreNotKnown(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	stats := func() error {
		_, err := vm.owner.metrics(t.Context())
		return err
	}
	w.must("stats", stats())
	restore := fdtest.Exhaust(t, 0)
	err := stats()
	restore()
	if !errdefs.IsUnavailable(err) {
		t.Errorf("stats without descriptors = %v, want Unavailable", err)
	}
	vm.mu.Lock()
	agent := vm.agent
	vm.agent, vm.owner.stats.last = nil, nil
	vm.mu.Unlock()
	err = stats()
	vm.mu.Lock()
	vm.agent = agent
	vm.mu.Unlock()
	if !errdefs.IsUnavailable(err) {
		t.Errorf("stats of a guest that has never answered = %v, want Unavailable", err)
	}
	w.must("stats", stats())
	if _, err := hostStats(&journal.Journal{Resources: journal.Resources{RAM: "/dev/null/ram"}}); !errdefs.IsUnavailable(
		err) {
		t.Errorf("stats of RAM that cannot be looked at = %v, want Unavailable", err)
	}
}

// A controller of cgroups that cannot be looked at is not left out, and what a cgroup cannot tell is
// not 0.
func TestCgroupThatIsNotKnown(t *testing.T) {
	root := t.TempDir()
	if err := os.Symlink("loop", filepath.Join(root, "loop")); err != nil {
		t.Fatal(err)
	}
	dirs, err := cgroup.DirsBelow(filepath.Join(root, "loop"), false, "", "ns", "vm", cgroup.Cpuset{})
	if !errdefs.IsUnavailable(err) {
		t.Errorf("cgroups are %v, %v, want Unavailable", dirs, err)
	}
	files(t, root, map[string]string{"memory.events/": "", "memory.current": "1000"})
	if c, err := cgroup.CostOf([]string{root}); !errdefs.IsUnavailable(err) {
		t.Errorf("cost is %+v, %v, want Unavailable", c, err)
	}
}
