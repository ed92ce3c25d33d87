package shim

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/fsnotify/fsnotify"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/journal"
)

// syncedPod is a pod with one volume that is kept fresh, and the directory of the host that is its source.
func syncedPod(t *testing.T, agent *fakeAgent) (*pod, string) {
	source := t.TempDir()
	vm := bareVM(t, agent)
	vm.journal.Begin(t.TempDir(), &journal.Journal{Resources: journal.Resources{
		Spec:    &spec.Spec{Pod: &spec.Pod{Volumes: []spec.Volume{{ID: "v1", Kind: spec.VolumeSynced}}}},
		Volumes: map[string]string{source: "v1"},
	}})
	return vm.pod, source
}

// TestFreshnessOverflow: the kernel drops events where too many come. Then every volume is looked at, and later events
// are heard.
func TestFreshnessOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faults{}
		told := 0
		f.at("sync volume", func() error { told++; return nil })
		p, source := syncedPod(t, newFakeAgent(f))
		ctx, cancel := context.WithCancel(t.Context())
		changes, lost := make(chan fsnotify.Event), make(chan error)
		over := make(chan struct{})
		fresh := newFreshness(p)
		go func() { defer close(over); fresh.run(ctx, changes, lost) }()
		synctest.Wait() // it has told the guest of the volume as it is
		look := func(name string, tell func()) {
			t.Helper()
			before := told
			if err := os.WriteFile(filepath.Join(source, name), []byte(name), 0o600); err != nil {
				t.Fatal(err)
			}
			tell()
			time.Sleep(2 * syncDelay)
			if synctest.Wait(); told != before+1 {
				t.Errorf("of %s the guest was told %d times", name, told-before)
			}
		}
		look("lost", func() { lost <- fsnotify.ErrEventOverflow })
		look("heard", func() { changes <- fsnotify.Event{Name: filepath.Join(source, "heard")} })
		cancel()
		<-over
	})
}

// TestSyncAfterAnotherShim: a guest that another shim has told of a volume is told of a change, at any revision.
func TestSyncAfterAnotherShim(t *testing.T) {
	for _, counted := range []uint64{0, 1, 2, 3, 1000} {
		agent := newFakeAgent(&faults{})
		agent.pod.synced = map[string]*agentv1.SyncVolumeRequest{"v1": {Volume: "v1", Revision: counted}}
		p, source := syncedPod(t, agent)
		for _, name := range []string{"first", "second"} {
			if err := os.WriteFile(filepath.Join(source, name), []byte(name), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := p.sync(t.Context(), agent, "v1", source); err != nil {
				t.Fatal(err)
			}
			has := agent.pod.synced["v1"].GetEntries()
			if !slices.ContainsFunc(has, func(f *agentv1.File) bool { return filepath.Base(f.GetPath()) == name }) {
				t.Errorf("of a guest at revision %d: file %s has not come: %v", counted, name, has)
			}
		}
	}
}

// TestSyncOfAHungGuest: a guest that does not answer what keeps a volume fresh holds up no Create for longer than the
// bound of a call.
func TestSyncOfAHungGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := newFakeAgent(&faults{})
		agent.hang("sync volume")
		p, source := syncedPod(t, agent)
		fresh := newFreshness(p)
		fresh.due[source] = true
		begun := time.Now()
		if fresh.push(t.Context()) {
			t.Error("a guest that does not answer was told")
		}
		if took := time.Since(begun); took != guestBound {
			t.Errorf("the guest was waited for for %s", took)
		}
	})
}

// TestSyncOfNoVolume: a Create that failed has named a volume, and the guest has none. It is not told each second: who
// makes the volume tells it.
func TestSyncOfNoVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faults{}
		told := 0
		f.at("sync volume", func() error { told++; return errdefs.ErrNotFound })
		p, _ := syncedPod(t, newFakeAgent(f))
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		fresh := newFreshness(p)
		go func() { defer close(over); fresh.run(ctx, nil, nil) }()
		time.Sleep(syncRescan / 2)
		if synctest.Wait(); told != 1 {
			t.Errorf("in half a minute the guest was told %d times", told)
		}
		cancel()
		<-over
	})
}

// TestSyncOfAGuestThatRefuses: a guest that refuses a volume is asked less and less often, and what it says is logged
// when it changes. Once it takes the volume, the next failure is news again.
func TestSyncOfAGuestThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faults{}
		told := 0
		says := func(err error) { f.at("sync volume", func() error { told++; return err }) }
		says(errFake)
		p, source := syncedPod(t, newFakeAgent(f))
		var log strings.Builder
		p.vm.log = slog.New(slog.NewTextHandler(&log, nil))
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		fresh := newFreshness(p)
		changes := make(chan fsnotify.Event)
		go func() { defer close(over); fresh.run(ctx, changes, nil) }()
		after := func(what string, wait time.Duration, most, logged int) {
			t.Helper()
			time.Sleep(wait)
			synctest.Wait()
			if n := strings.Count(log.String(), "\n"); told > most || told == 0 || n != logged {
				t.Errorf("%s: the guest was told %d times, and logged were %d lines:\n%s", what, told, n, &log)
			}
			told = 0
		}
		after("refused", 10*syncRescan, 40, 1)
		says(errBroken)
		after("refused for another reason", syncRescan, 4, 2)
		says(nil)
		after("taken", syncRescan, 1, 2)
		says(errBroken)
		if err := os.WriteFile(filepath.Join(source, "new"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		changes <- fsnotify.Event{Name: filepath.Join(source, "new")}
		after("refused again", 2*syncDelay, 1, 3)
		cancel()
		<-over
	})
}
