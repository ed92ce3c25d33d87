package cgroup

import (
	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// Figures of a VM: those of the container in the guest, and what the VM costs its host.
// CPU is all that the host has spent. Memory is the container's and the own cost of VMM
// and shim; the limit is what the user knows, that of the container.
type Figures struct {
	Guest *agentv1.StatsResponse
	Cost  Cost
	RAM   uint64
}

func (f Figures) usage() uint64 { return f.Guest.GetMemoryCurrent() + f.Cost.Own }
func (f Figures) peak() uint64  { return f.Guest.GetMemoryMaxUsage() + f.Cost.Own }

// limit of a container that has none is the RAM of its VM.
func (f Figures) limit() uint64 {
	limit := f.Guest.GetMemoryLimit()
	if limit == 0 || limit > f.RAM {
		limit = f.RAM
	}
	return limit
}

// V2 is what containerd gets on a host with cgroup version 2.
func (f Figures) V2() *v2.Metrics {
	g, s, c := f.Guest, f.Guest.GetMemoryStat(), f.Guest.GetCpuStat()
	m := &v2.Metrics{
		Pids: &v2.PidsStat{Current: g.GetPidsCurrent(), Limit: g.GetPidsLimit()},
		CPU: &v2.CPUStat{
			UsageUsec: f.Cost.CPU, UserUsec: g.GetCpuUserUsec(), SystemUsec: g.GetCpuSystemUsec(),
			NrPeriods: c["nr_periods"], NrThrottled: c["nr_throttled"], ThrottledUsec: c["throttled_usec"],
		},
		Memory: &v2.MemoryStat{
			Usage: f.usage(), UsageLimit: f.limit(), MaxUsage: f.peak(),
			Anon: s["anon"], File: s["file"], KernelStack: s["kernel_stack"], Slab: s["slab"], Sock: s["sock"],
			Shmem: s["shmem"], FileMapped: s["file_mapped"],
			SwapUsage: g.GetSwapCurrent(), SwapLimit: g.GetSwapLimit(),
			InactiveAnon: s["inactive_anon"], ActiveAnon: s["active_anon"], InactiveFile: s["inactive_file"],
			ActiveFile: s["active_file"],
			Pgfault:    s["pgfault"], Pgmajfault: s["pgmajfault"],
		},
		MemoryEvents: &v2.MemoryEvents{OomKill: g.GetOomKills()},
		Io:           &v2.IOStat{},
	}
	for _, b := range g.GetIo() {
		m.Io.Usage = append(m.Io.Usage, &v2.IOEntry{
			Major: b.GetMajor(), Minor: b.GetMinor(), Rbytes: b.GetReadBytes(), Wbytes: b.GetWriteBytes(), Rios: b.GetReads(),
			Wios: b.GetWrites(),
		})
	}
	return m
}

// V1 is what containerd gets on a host with cgroup version 1.
func (f Figures) V1() *v1.Metrics {
	g, s, c := f.Guest, f.Guest.GetMemoryStat(), f.Guest.GetCpuStat()
	m := &v1.Metrics{
		Pids: &v1.PidsStat{Current: g.GetPidsCurrent(), Limit: g.GetPidsLimit()},
		CPU: &v1.CPUStat{
			Usage: &v1.CPUUsage{
				Total: f.Cost.CPU * 1000, User: g.GetCpuUserUsec() * 1000, Kernel: g.GetCpuSystemUsec() * 1000,
				PerCPU: f.Cost.PerCPU,
			},
			Throttling: &v1.Throttle{Periods: c["nr_periods"], ThrottledPeriods: c["nr_throttled"],
				ThrottledTime: c["throttled_usec"] * 1000},
		},
		Memory: &v1.MemoryStat{
			Usage: &v1.MemoryEntry{Usage: f.usage(), Limit: f.limit(), Max: f.peak()},
			RSS:   s["anon"], Cache: s["file"], InactiveFile: s["inactive_file"], ActiveFile: s["active_file"],
			TotalRSS: s["anon"], TotalCache: s["file"], TotalInactiveFile: s["inactive_file"], TotalActiveFile: s["active_file"],
			MappedFile: s["file_mapped"], TotalMappedFile: s["file_mapped"],
			PgFault: s["pgfault"], PgMajFault: s["pgmajfault"],
			Kernel: &v1.MemoryEntry{Usage: s["kernel"]},
			Swap:   &v1.MemoryEntry{Usage: f.usage() + g.GetSwapCurrent()}, // version 1 counts both together
		},
		MemoryOomControl: &v1.MemoryOomControl{OomKill: g.GetOomKills()},
		Blkio:            &v1.BlkIOStat{}, // clients look into it without asking
	}
	for _, b := range g.GetIo() {
		entry := func(op string, n uint64) *v1.BlkIOEntry {
			return &v1.BlkIOEntry{Op: op, Major: b.GetMajor(), Minor: b.GetMinor(), Value: n}
		}
		m.Blkio.IoServiceBytesRecursive = append(m.Blkio.IoServiceBytesRecursive, entry("Read", b.GetReadBytes()),
			entry("Write", b.GetWriteBytes()))
		m.Blkio.IoServicedRecursive = append(m.Blkio.IoServicedRecursive, entry("Read", b.GetReads()),
			entry("Write", b.GetWrites()))
	}
	return m
}
