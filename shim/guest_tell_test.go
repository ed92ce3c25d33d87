package shim

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// namedPod is a node on which a pod can be captured.
func namedPod(t *testing.T) *world {
	w := newWorld(t)
	w.podNotes = map[string]string{"godwit.dev/vm": "web"}
	return w
}

func (w *world) tell(change func(*machinev1.TellRequest)) error {
	r := &machinev1.TellRequest{Snapshot: "nightly", Digest: theDigest,
		Ref: &machinev1.Ref{Operation: "s1", Generation: w.ref().GetGeneration()}}
	if change != nil {
		change(r)
	}
	_, err := w.machineService().Tell(w.t.Context(), r)
	return err
}

// toldFiles are the files of snapshots that containers got since the last look, as CONTAINER PATH.
func (w *world) toldFiles() (all []string) {
	w.agent.mu.Lock()
	defer w.agent.mu.Unlock()
	for _, r := range w.agent.pod.copied {
		for _, f := range r.GetFiles() {
			if f.GetReplace() {
				all = append(all, r.GetContainer()+" "+f.GetPath())
			}
		}
	}
	w.agent.pod.copied = nil
	slices.Sort(all)
	return all
}

// Each container that runs gets the file of a snapshot, as a new file. Given again, it gets the same.
func TestTell(t *testing.T) {
	w := namedPod(t).runningPod("setup", "web", "log")
	w.agent.exit("c1") <- 0
	w.waitFor("setup")
	w.toldFiles()
	w.must("tell", w.tell(nil))
	w.agent.mu.Lock()
	f := w.agent.pod.copied[0].GetFiles()[0]
	w.agent.mu.Unlock()
	want := `{"snapshot":"nightly","uid":"s1","digest":"` + theDigest + `"}` + "\n"
	if string(f.GetData()) != want || f.GetMode()&0o777 != 0o644 {
		t.Errorf("file %s with mode %o", f.GetData(), f.GetMode())
	}
	once := []string{"c2 /run/godwit/snapshots/s1", "c3 /run/godwit/snapshots/s1"}
	if got := w.toldFiles(); !slices.Equal(got, once) {
		t.Errorf("told %q, want %q", got, once)
	}
	w.must("tell again", w.tell(nil))
	if got := w.toldFiles(); !slices.Equal(got, once) {
		t.Errorf("told %q again, want %q", got, once)
	}
	for id := range map[string]bool{"web": true, "log": true} {
		w.must("kill "+id, w.killTask(id))
		w.waitFor(id)
	}
	if err := w.tell(nil); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("nothing runs: %v", err)
	}
}

// What is no order for the VM as it is now, is refused and reaches no guest.
func TestTellRefused(t *testing.T) {
	w := namedPod(t).runningPod("web")
	w.toldFiles()
	for name, test := range map[string]struct {
		change func(*machinev1.TellRequest)
		is     func(error) bool
	}{
		"stale":        {func(r *machinev1.TellRequest) { r.Ref.Generation += 7 }, errdefs.IsFailedPrecondition},
		"no operation": {func(r *machinev1.TellRequest) { r.Ref.Operation = "" }, errdefs.IsInvalidArgument},
		"a path": {func(r *machinev1.TellRequest) { r.Ref.Operation = "../../etc/passwd" },
			errdefs.IsInvalidArgument},
		"a long digest": {func(r *machinev1.TellRequest) { r.Digest = string(make([]byte, 2048)) },
			errdefs.IsInvalidArgument},
	} {
		err := w.tell(test.change)
		if native := errgrpc.ToNative(err); err == nil || !test.is(native) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := w.capture()
	w.must("capture", err)
	if err := w.tell(nil); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("while an operation holds the VM: %v", err)
	}
	if got := w.toldFiles(); len(got) != 0 {
		t.Errorf("told %q", got)
	}
	if err := newWorld(t).running().tell(nil); !errdefs.IsNotImplemented(errgrpc.ToNative(err)) {
		t.Errorf("no pod: %v", err)
	}
}

// A guest that fails is told of, and the next order writes all. One that hangs ends with the caller, and its VM can be
// captured afterwards.
func TestTellFails(t *testing.T) {
	w := namedPod(t).runningPod("web", "log")
	w.toldFiles()
	for n := 1; n <= 2; n++ {
		w.arm(n)
		if err := w.tell(nil); err == nil || w.fired() != "copy files" {
			t.Fatalf("call %d (%s) failed: %v", n, w.fired(), err)
		}
		w.arm(0)
		if got := w.toldFiles(); len(got) != 1 {
			t.Errorf("call %d failed, and %q was told", n, got)
		}
		w.must("tell again", w.tell(nil))
		if got := w.toldFiles(); len(got) != 2 {
			t.Errorf("told %q again", got)
		}
	}
	w.agent.hang("copy files")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := w.machineService().Tell(ctx, &machinev1.TellRequest{Ref: &machinev1.Ref{Operation: "s1",
		Generation: w.ref().GetGeneration()}})
	if err == nil {
		t.Error("a guest that hangs was told")
	}
	_, err = w.capture()
	w.must("capture afterwards", err)
}

// A capture waits for a word that is on its way.
func TestCaptureAwaitsAWord(t *testing.T) {
	w := namedPod(t).runningPod("web")
	began, goOn := make(chan struct{}), make(chan struct{})
	w.at("copy files", func() error { close(began); <-goOn; return nil })
	told, captured := make(chan error, 1), make(chan error, 1)
	go func() { told <- w.tell(nil) }()
	<-began
	go func() { _, err := w.capture(); captured <- err }()
	select {
	case err := <-captured:
		close(goOn)
		t.Fatalf("captured in a call of the guest: %v", err)
	case <-time.After(20 * busyInterval):
	}
	close(goOn)
	w.must("tell", <-told)
	w.must("capture", <-captured)
}
