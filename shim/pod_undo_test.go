package shim

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// lostPod is a guest that makes a container and whose answer is lost.
type lostPod struct {
	*fakeAgent
	loses *bool
}

func (p *lostPod) AddContainer(ctx context.Context, r *agentv1.AddContainerRequest) (*agentv1.AddContainerResponse,
	error) {
	answer, err := p.fakeAgent.AddContainer(ctx, r)
	if *p.loses {
		return nil, errdefs.ErrUnavailable
	}
	return answer, err
}

// losing is a pod that can sleep, with one container that runs. While loses is set the answer of an AddContainer is
// lost.
func losing(t *testing.T) (w *world, vm *VM, loses *bool) {
	w, loses = newWorld(t), new(bool)
	w.podNotes = map[string]string{"godwit.dev/vm": "web"}
	w.guest = func(a *fakeAgent) Agent { return &lostPod{a, loses} }
	w.runningPod("web")
	vm, err := w.service.current()
	w.must("find VM", err)
	return w, vm, loses
}

var errBroken = errors.New("it does not answer")

func broken() error { return errBroken }

func whole() error { return nil }

// TestCreateIsNotTakenBack: the guest has a container whose Create failed, and does not remove it. The journal has the
// container until the guest has removed it. Until then its disk is not given away, and no operation gets the VM.
func TestCreateIsNotTakenBack(t *testing.T) {
	w, vm, loses := losing(t)
	busyBound = 0
	t.Cleanup(func() { busyBound = longestBusy })
	*loses = true
	w.at("remove container", broken)
	if err := w.createMember("late", "busybox"); err == nil {
		t.Error("a Create succeeded without an answer of the guest")
	}
	*loses = false
	if j := vm.journal.Load(); !slices.Equal(w.agent.has(), []string{"c1", "c2"}) || j.Spec.Pod.Member("c2") == nil ||
		len(j.Members) != 2 {
		t.Errorf("the guest has %q, the journal %+v", w.agent.has(), j.Members)
	}
	_, err := w.capture()
	if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) || !strings.Contains(err.Error(), "late") {
		t.Errorf("capture of a pod whose guest has a container that no client knows: %v", err)
	}
	w.must("create again", w.createMember("late", "busybox"))
	w.must("start again", w.startTask("late"))
	w.at("remove container", whole)
	gone := func() bool { return slices.Equal(w.agent.has(), []string{"c1", "c3"}) }
	if !eventually(gone) || !eventually(func() bool { return len(vm.journal.Load().Members) == 2 }) {
		t.Errorf("the guest has %q, the journal %+v", w.agent.has(), vm.journal.Load().Members)
	}
	busyBound = longestBusy
	_, err = w.capture()
	w.must("capture", err)
	if j := vm.journal.Load(); j.Spec.Pod.Member("c2") != nil || len(j.Ended) != 0 {
		t.Errorf("a container that never was is in the snapshot: %+v, ended %+v", j.Spec.Pod.Containers, j.Ended)
	}
}

// TestCreateOfAHungGuest: a guest that answers no RemoveContainer takes all the time that the undo of a Create has. The
// sandbox process of that container ends all the same.
func TestCreateOfAHungGuest(t *testing.T) {
	w, vm, loses := losing(t)
	undoBound = 100 * time.Millisecond
	t.Cleanup(func() { undoBound = 30 * time.Second })
	*loses = true
	w.agent.hang("remove container")
	if err := w.createMember("late", "busybox"); err == nil {
		t.Error("a Create succeeded without an answer of the guest")
	}
	*loses = false
	if j := vm.journal.Load(); len(j.Members) != 2 || j.Members[1].Holder.PID == 0 {
		t.Fatalf("the journal has members %+v", j.Members)
	}
	holder := vm.journal.Load().Members[1].Holder
	w.agent.mu.Lock()
	w.agent.pod.hung = nil
	w.agent.mu.Unlock()
	if !eventually(func() bool { return len(vm.journal.Load().Members) == 1 }) || lives(holder) {
		t.Errorf("the journal has members %+v, and the sandbox process lives: %t", vm.journal.Load().Members, lives(holder))
	}
}

// TestPodEndsBeforeItIsTakenBack: a pod is deleted while its guest has a container whose Create failed. Nothing is left
// of either, and no journal is written after the VM's end.
func TestPodEndsBeforeItIsTakenBack(t *testing.T) {
	w, vm, loses := losing(t)
	*loses = true
	w.at("remove container", broken)
	if err := w.createMember("late", "busybox"); err == nil {
		t.Error("a Create succeeded without an answer of the guest")
	}
	w.must("kill pod", w.kill("", 9))
	w.waitFor("vm")
	w.must("delete web", w.deleteTask("web"))
	w.must("delete pod", w.delete())
	if _, err := os.Stat(vm.dir); !os.IsNotExist(err) {
		t.Errorf("the VM's directory is there after its Delete: %v", err)
	}
	for _, p := range w.processes() {
		if !eventually(func() bool { return !lives(p) }) {
			t.Errorf("process %d is left", p.PID)
		}
	}
}

// TestCreateOnAFullDisk: a Create fails, and the journal cannot be written either. Once it can, another Create has the
// container of the snapshot, or the journal forgets the new one.
func TestCreateOnAFullDisk(t *testing.T) {
	for _, restored := range []bool{true, false} {
		w, id, free := newWorld(t), "vm", func() {}
		if restored {
			w, id = asleep(w, true), "team.web"
			w.must("create pod", w.createPod())
			w.must("start pod", w.start())
		} else {
			w.runningPod()
		}
		w.at("hold", func() error {
			free = w.fullUnder(id)
			return errBroken
		})
		if err := w.createMember("web", "alpine"); err == nil {
			t.Error("a Create succeeded without a sandbox process")
		}
		w.at("hold", whole)
		free()
		vm, err := w.service.current()
		w.must("find VM", err)
		if !eventually(func() bool { return len(vm.journal.Load().Members) == 0 }) {
			t.Errorf("restored: %t, and the journal has members %+v", restored, vm.journal.Load().Members)
			continue
		}
		w.must("create again", w.createMember("web", "alpine"))
	}
}

// TestDiskIsNotLetGo: the guest does not let go of a disk that was to make room. A container of that image gets no disk
// that may go at any moment: it has one once the guest has let go. Until then no operation gets the VM.
func TestDiskIsNotLetGo(t *testing.T) {
	w := newWorld(t)
	busyBound = 0
	t.Cleanup(func() { busyBound = longestBusy })
	w.podNotes = map[string]string{"godwit.dev/vm": "web"}
	w.runningPod()
	vm, err := w.service.current()
	w.must("find VM", err)
	for i := range 16 {
		name := string(rune('a' + i))
		w.must("create", w.createMember(name, "image-"+name))
		if name != "c" {
			w.must("start", w.startTask(name))
		}
	}
	w.must("delete", w.deleteTask("c"))
	stuck := func(is bool) {
		w.machine.mu.Lock()
		w.machine.hot.stuck = is
		w.machine.mu.Unlock()
	}
	stuck(true)
	if err := w.createMember("q", "image-q"); err == nil {
		t.Error("a slot whose disk the guest still has was given away")
	}
	if err := w.createMember("c", "image-c"); err == nil {
		t.Error("a container got a disk that its guest is about to let go of")
	}
	_, err = w.capture()
	if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) || !strings.Contains(err.Error(), "disk") {
		t.Errorf("capture of a pod one of whose disks may be gone: %v", err)
	}
	stuck(false)
	if !eventually(func() bool { return len(w.machine.plugged()) == 15 && len(vm.spec().Disks) == 16 }) {
		t.Errorf("the VM has %d disks, its Spec %d", len(w.machine.plugged()), len(vm.spec().Disks))
	}
	busyBound = longestBusy
	_, err = w.capture()
	w.must("capture", err)
}

// TestCreateIsNotWrittenDown: the journal cannot be written when a container gets its id, or is bound to one of the
// snapshot. Nothing is taken back later: the next Create gets that id.
func TestCreateIsNotWrittenDown(t *testing.T) {
	for _, restored := range []bool{true, false} {
		w, id, name := newWorld(t), "vm", "late"
		if restored {
			w, id = asleep(w, true), "team.web"
			w.must("create pod", w.createPod())
			w.must("start pod", w.start())
			name = "web"
		} else {
			w.runningPod("web")
		}
		vm, err := w.service.current()
		w.must("find VM", err)
		members := len(vm.journal.Load().Members)
		free := w.fullUnder(id)
		if err := w.createMember(name, "alpine"); err == nil {
			t.Error("a Create succeeded whose container the journal does not have")
		}
		if err := vm.pod.removals.over(); err != nil {
			t.Errorf("restored: %t: what was never made is taken back: %v", restored, err)
		}
		free()
		w.must("create again", w.createMember(name, "alpine"))
		if now := len(vm.journal.Load().Members); now != members+1 {
			t.Errorf("restored: %t: the journal has %d members, and had %d", restored, now, members)
		}
	}
}

// TestRemovalAskedForAtItsEnd: what is to be removed again, while the last try of the first removal ends, is removed.
// Until then no operation gets the VM.
func TestRemovalAskedForAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs, second := bareVM(t, nil).pod.removals, make(chan struct{})
		rs.later("disk", func(context.Context) error {
			rs.later("disk", func(context.Context) error { close(second); return nil })
			return nil
		})
		select {
		case <-second:
		case <-time.After(time.Minute):
			t.Error("the second removal is lost")
		}
		if err := rs.await(t.Context()); err != nil || rs.over() != nil {
			t.Errorf("it is under way still: %v, %v", err, rs.over())
		}
	})
}
