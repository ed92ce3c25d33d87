package shim

import (
	"context"
	"testing"
	"testing/synctest"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/journal"
)

// silentAgent answers Stats when it is let.
type silentAgent struct {
	*fakeAgent
	let   chan struct{}
	asked int
}

func (a *silentAgent) Stats(ctx context.Context, _ *agentv1.StatsRequest) (*agentv1.StatsResponse, error) {
	a.asked++
	select {
	case <-a.let:
		return &agentv1.StatsResponse{MemoryCurrent: 43}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A guest that does not answer is waited for once, by all who ask then. After that the last figures are answered at
// once until it speaks again.
func TestStatsOfASilentGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := &silentAgent{let: make(chan struct{})}
		vm := bareVM(t, agent)
		vm.journal.Begin(t.TempDir(), &journal.Journal{})
		vm.state, vm.owner.stats.last = Running, &agentv1.StatsResponse{MemoryCurrent: 42}
		ask := func(wantWait bool, want uint64) {
			t.Helper()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan uint64, 1)
			go func() { done <- vm.owner.guestStats(ctx).GetMemoryCurrent() }()
			synctest.Wait()
			select {
			case got := <-done:
				if wantWait || got != want {
					t.Errorf("answered %d at once", got)
				}
				return
			default:
			}
			if !wantWait {
				t.Error("the call waits for the guest")
			}
			if got := <-done; got != want {
				t.Errorf("answered %d, want %d", got, want)
			}
		}
		ask(true, 42)
		for range 3 {
			ask(false, 42)
		}
		if agent.asked != 1 {
			t.Errorf("the guest was asked %d times", agent.asked)
		}
		close(agent.let)
		synctest.Wait()
		ask(false, 43)
	})
}

// Stats work in every state from Created on, also after the end.
func TestStatsInEveryState(t *testing.T) {
	w := newWorld(t)
	stats := func(when string) {
		t.Helper()
		if _, err := w.service.Stats(ctxNS(t), &taskapi.StatsRequest{ID: "vm"}); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	w.must("create", w.create())
	stats("created")
	w.must("start", w.start())
	stats("running")
	_, err := w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "vm"})
	w.must("pause", err)
	stats("paused")
	w.must("kill", w.kill("", 9))
	w.wait("")
	stats("stopped")
	vm, _ := w.service.current()
	if vm.owner.stats.cached().GetMemoryCurrent() != 42 {
		t.Errorf("the last figures are %v", vm.owner.stats.cached())
	}
}

// Use is the container's and what the VM costs in addition to it. The limit is the container's, and of one that has
// none the RAM of its VM.
func TestFigures(t *testing.T) {
	g := &agentv1.StatsResponse{
		MemoryCurrent: 30, MemoryLimit: 100, MemoryMaxUsage: 50, OomKills: 1, CpuUserUsec: 2,
		CpuStat: map[string]uint64{"nr_throttled": 4},
		Io:      []*agentv1.BlockIO{{Major: 254, ReadBytes: 5, WriteBytes: 6, Reads: 7, Writes: 8}},
	}
	f := cgroup.Figures{Guest: g, Cost: cgroup.Cost{Own: 7, CPU: 9, PerCPU: []uint64{4000, 5000}}, RAM: 1000}
	one, two := f.V1(), f.V2()
	if m := one.Memory.Usage; m.Usage != 37 || m.Limit != 100 || m.Max != 57 {
		t.Errorf("v1 memory %v", m)
	}
	if m := two.Memory; m.Usage != 37 || m.UsageLimit != 100 || m.MaxUsage != 57 {
		t.Errorf("v2 memory %v", m)
	}
	if c := one.CPU; c.Usage.Total != 9000 || c.Usage.User != 2000 || len(c.Usage.PerCPU) != 2 ||
		c.Throttling.ThrottledPeriods != 4 {
		t.Errorf("v1 CPU %v", c)
	}
	if c := two.CPU; c.UsageUsec != 9 || c.UserUsec != 2 || c.NrThrottled != 4 {
		t.Errorf("v2 CPU %v", c)
	}
	if one.MemoryOomControl.OomKill != 1 || two.MemoryEvents.OomKill != 1 {
		t.Error("OOM kills")
	}
	if b := one.Blkio; len(b.IoServiceBytesRecursive) != 2 || b.IoServiceBytesRecursive[1].Value != 6 ||
		b.IoServicedRecursive[0].Value != 7 {
		t.Errorf("v1 I/O %v", b)
	}
	if e := two.Io.Usage; len(e) != 1 || e[0].Rbytes != 5 || e[0].Wios != 8 {
		t.Errorf("v2 I/O %v", e)
	}
	f.Guest.MemoryLimit = 0
	if got := f.V2().Memory.UsageLimit; got != 1000 {
		t.Errorf("limit without a limit %d", got)
	}
}
