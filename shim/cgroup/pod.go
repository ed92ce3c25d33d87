package cgroup

import (
	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

// PodFigures are those of the sandbox of a pod: what VM and shim cost their host. Limit is what they can have at most.
type PodFigures struct {
	Cost  Cost
	Limit uint64
}

// V2 is what containerd gets on a host with cgroup version 2.
func (f PodFigures) V2() *v2.Metrics {
	c := f.Cost
	return &v2.Metrics{
		Pids: &v2.PidsStat{}, CPU: &v2.CPUStat{UsageUsec: c.CPU},
		Memory: &v2.MemoryStat{Usage: c.Used, UsageLimit: f.Limit, Anon: c.Anon, InactiveFile: c.Inactive,
			File: c.Used - min(c.Used, c.Own)},
		MemoryEvents: &v2.MemoryEvents{OomKill: c.OOMKills}, Io: &v2.IOStat{},
	}
}

// V1 is what containerd gets on a host with cgroup version 1.
func (f PodFigures) V1() *v1.Metrics {
	c := f.Cost
	files := c.Used - min(c.Used, c.Own)
	return &v1.Metrics{
		Pids: &v1.PidsStat{}, CPU: &v1.CPUStat{Usage: &v1.CPUUsage{Total: c.CPU * 1000, PerCPU: c.PerCPU},
			Throttling: &v1.Throttle{}},
		Memory: &v1.MemoryStat{Usage: &v1.MemoryEntry{Usage: c.Used, Limit: f.Limit}, RSS: c.Anon, TotalRSS: c.Anon,
			Cache: files, TotalCache: files, InactiveFile: c.Inactive, TotalInactiveFile: c.Inactive},
		MemoryOomControl: &v1.MemoryOomControl{OomKill: c.OOMKills}, Blkio: &v1.BlkIOStat{},
	}
}
