package shim

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/shim/journal"
)

// TestVolumesComeWithTheWake: a guest that wakes is told of its volumes while it is asked who it is.
func TestVolumesComeWithTheWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, told := &faults{}, make(chan struct{})
		f.at("sync volume", func() error { close(told); return nil })
		f.at("restored", func() error {
			select {
			case <-told:
				return nil
			case <-time.After(guestBound):
				return errors.New("the guest was told of no volume")
			}
		})
		agent := newFakeAgent(f)
		p, _ := syncedPod(t, agent)
		s := &starting{vm: p.vm, task: p.vm.owner}
		if err := errors.Join(s.woken.meet(t.Context(), s, agent), s.woken.err); err != nil {
			t.Error(err)
		}
		p.awaitEarly(t.Context())
	})
}

// TestVolumesThatDoNotComeEarly: a guest that takes no volume, or hangs over one, wakes all the same. It is told again,
// and a capture that begins meanwhile waits for nothing.
func TestVolumesThatDoNotComeEarly(t *testing.T) {
	for name, spoil := range map[string]func(*fakeAgent){
		"fails": func(a *fakeAgent) { a.at("sync volume", func() error { return errors.New("no space") }) },
		"hangs": func(a *fakeAgent) { a.hang("sync volume") },
	} {
		synctest.Test(t, func(t *testing.T) {
			agent := newFakeAgent(&faults{})
			p, source := syncedPod(t, agent)
			s := &starting{vm: p.vm, task: p.vm.owner}
			spoil(agent)
			if err := errors.Join(s.woken.meet(t.Context(), s, agent), s.woken.err); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			synctest.Wait()
			capture, cancel := context.WithCancel(t.Context())
			cancel()
			begun := time.Now()
			p.keepFresh(capture)
			if took := time.Since(begun); took > 0 {
				t.Errorf("%s: a capture waited for %s", name, took)
			}
			agent.at("sync volume", nil)
			agent.pod.hung = nil
			fresh := newFreshness(p)
			fresh.due[source] = true
			if !fresh.push(t.Context()) || agent.pod.synced["v1"] == nil {
				t.Errorf("%s: the guest was not told again", name)
			}
		})
	}
}

// TestSyncAfterAClockAhead: a shim whose node's clock was ahead has told the guest of a volume.
func TestSyncAfterAClockAhead(t *testing.T) {
	ahead := uint64(time.Now().Add(time.Hour).UnixNano())
	agent := newFakeAgent(&faults{})
	agent.pod.synced = map[string]*agentv1.SyncVolumeRequest{"v1": {Volume: "v1", Revision: ahead}}
	p, source := syncedPod(t, agent)
	if err := p.sync(t.Context(), agent, "v1", source); err != nil {
		t.Fatal(err)
	}
	if has := agent.pod.synced["v1"].GetRevision(); has <= ahead {
		t.Errorf("the guest has revision %d of before, %d", ahead, has)
	}
}

// countingGuest has always a later revision than it is told.
type countingGuest struct {
	*fakeAgent
	by    uint64
	calls int
}

func (g *countingGuest) SyncVolume(_ context.Context, r *agentv1.SyncVolumeRequest) (*agentv1.SyncVolumeResponse,
	error) {
	g.calls++
	if g.calls > 100 {
		return nil, errBroken
	}
	return &agentv1.SyncVolumeResponse{Revision: r.GetRevision() + g.by}, nil
}

// TestSyncOfAGuestThatCounts: a guest that answers ever later revisions is not sent a volume without end, nor are the
// revisions of the shim made to begin anew.
func TestSyncOfAGuestThatCounts(t *testing.T) {
	for _, by := range []uint64{1, math.MaxInt64} {
		agent := &countingGuest{fakeAgent: newFakeAgent(&faults{}), by: by}
		p, source := syncedPod(t, agent.fakeAgent)
		before := uint64(time.Now().UnixNano())
		if err := p.sync(t.Context(), agent, "v1", source); !errdefs.IsDataLoss(err) || agent.calls > 2 {
			t.Errorf("a guest that adds %d: %v after %d calls", by, err, agent.calls)
		}
		if p.revision < before {
			t.Errorf("a guest that adds %d: the shim counts on from %d", by, p.revision)
		}
	}
}

// TestVolumesDoNotWaitForPages: the guest of a lazy wake is left alone while it wants pages, but not with old volumes.
func TestVolumesDoNotWaitForPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := syncedPod(t, newFakeAgent(&faults{}))
		p.vm.postcopy.fill = &filling{vm: p.vm, here: make(chan struct{}), over: make(chan struct{}),
			idle: make(chan time.Time)}
		s := &starting{vm: p.vm, task: p.vm.owner}
		waits := func() time.Duration {
			begun := time.Now()
			if err := s.deferAgent(t.Context(), nil); err != nil {
				t.Error(err)
			}
			return time.Since(begun)
		}
		if took := waits(); took != 0 {
			t.Errorf("the volumes wait %v", took)
		}
		if err := p.vm.write(func(j *journal.Journal) { j.Volumes = nil }); err != nil {
			t.Fatal(err)
		}
		if took := waits(); took != longestDefer {
			t.Errorf("a guest that wants pages is asked after %v", took)
		}
	})
}
