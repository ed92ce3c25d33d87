package shim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3"
	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// statsBound is how long Stats waits for the guest; after it the last figures count.
const statsBound = time.Second

// snapStats asks the guest and remembers its answer. It never fails: the guest may be
// frozen, hung or gone.
func (vm *VM) snapStats(ctx context.Context) *agentv1.StatsResponse {
	vm.mu.Lock()
	agent, last, ask := vm.agent, vm.stats, vm.state == Running && vm.agent != nil
	vm.mu.Unlock()
	if !ask {
		return last
	}
	ctx, cancel := context.WithTimeout(ctx, statsBound)
	defer cancel()
	r, err := agent.Stats(ctx, &agentv1.StatsRequest{})
	if err != nil {
		return last
	}
	vm.mu.Lock()
	vm.stats = r
	vm.mu.Unlock()
	return r
}

// metrics are of the type that the host's collectors understand. Memory and CPU are
// those of the container, pids too; CPU is what the whole VMM has used on the host. Block
// I/O has no entry, since a VM uses no device of the host, and is there because nerdctl
// takes it for granted.
func (vm *VM) metrics(ctx context.Context) (any, error) {
	if vm.is(Creating) || vm.is(Created) || vm.is(Starting) {
		return nil, fmt.Errorf("stats of VM %s, which has not started: %w", vm.id, errdefs.ErrFailedPrecondition)
	}
	g := vm.snapStats(ctx)
	if g == nil {
		g = &agentv1.StatsResponse{}
	}
	cpu := max(g.GetCpuUsageUsec(), vm.hostCPU())
	if cgroups.Mode() == cgroups.Unified {
		return &v2.Metrics{
			Pids:         &v2.PidsStat{Current: g.GetPidsCurrent(), Limit: g.GetPidsLimit()},
			CPU:          &v2.CPUStat{UsageUsec: cpu, UserUsec: g.GetCpuUserUsec(), SystemUsec: g.GetCpuSystemUsec()},
			Memory:       memoryV2(g, vm.spec().Memory),
			MemoryEvents: &v2.MemoryEvents{OomKill: g.GetOomKills()},
			Io:           &v2.IOStat{},
		}, nil
	}
	return &v1.Metrics{
		Pids: &v1.PidsStat{Current: g.GetPidsCurrent(), Limit: g.GetPidsLimit()},
		CPU: &v1.CPUStat{Usage: &v1.CPUUsage{
			Total: cpu * 1000, User: g.GetCpuUserUsec() * 1000, Kernel: g.GetCpuSystemUsec() * 1000,
		}},
		Memory:           memoryV1(g, vm.spec().Memory),
		MemoryOomControl: &v1.MemoryOomControl{OomKill: g.GetOomKills()},
		Blkio:            &v1.BlkIOStat{},
	}, nil
}

// memoryLimit is the container's, and without one the RAM of the VM.
func memoryLimit(g *agentv1.StatsResponse, ram uint64) uint64 {
	if limit := g.GetMemoryLimit(); limit > 0 {
		return min(limit, ram)
	}
	return ram
}

func memoryV2(g *agentv1.StatsResponse, ram uint64) *v2.MemoryStat {
	s := g.GetMemoryStat()
	return &v2.MemoryStat{
		Usage: g.GetMemoryCurrent(), UsageLimit: memoryLimit(g, ram), MaxUsage: g.GetMemoryMaxUsage(),
		Anon: s["anon"], File: s["file"], KernelStack: s["kernel_stack"], Slab: s["slab"], Sock: s["sock"], Shmem: s["shmem"],
		InactiveAnon: s["inactive_anon"], ActiveAnon: s["active_anon"], InactiveFile: s["inactive_file"], ActiveFile: s["active_file"],
		Pgfault: s["pgfault"], Pgmajfault: s["pgmajfault"],
	}
}

func memoryV1(g *agentv1.StatsResponse, ram uint64) *v1.MemoryStat {
	s := g.GetMemoryStat()
	return &v1.MemoryStat{
		Usage: &v1.MemoryEntry{Usage: g.GetMemoryCurrent(), Limit: memoryLimit(g, ram), Max: g.GetMemoryMaxUsage()},
		RSS:   s["anon"], Cache: s["file"], InactiveFile: s["inactive_file"], ActiveFile: s["active_file"],
		TotalRSS: s["anon"], TotalCache: s["file"], TotalInactiveFile: s["inactive_file"], TotalActiveFile: s["active_file"],
		PgFault: s["pgfault"], PgMajFault: s["pgmajfault"],
	}
}

// hostCPU is what the VMM has used, in microseconds.
func (vm *VM) hostCPU() uint64 {
	j := vm.noted()
	if j.Process == nil {
		return 0
	}
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(j.Process.PID), "stat"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseUint(fields[11], 10, 64)
	system, _ := strconv.ParseUint(fields[12], 10, 64)
	return (user + system) * 10_000 // USER_HZ is 100
}
