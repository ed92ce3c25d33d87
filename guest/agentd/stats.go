package agentd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	agentv1 "godwit.dev/godwit/api/agent/lean"
)

// Stats implements agentv1.AgentService.
func (s *Service) Stats(_ context.Context, r *agentv1.StatsRequest) (*agentv1.StatsResponse, error) {
	group, err := s.group(r.Container)
	if err != nil {
		return nil, err
	}
	return group.stats()
}

// stats fails where a figure cannot be read: 0 would be a figure too.
func (c cgroup) stats() (_ *agentv1.StatsResponse, err error) {
	value := func(name string) uint64 {
		n, e := c.value(name)
		err = errors.Join(err, e)
		return n
	}
	table := func(name string) map[string]uint64 {
		m, e := c.table(name)
		err = errors.Join(err, e)
		return m
	}
	cpu := table("cpu.stat")
	disks, e := c.io()
	err = errors.Join(err, e)
	out := &agentv1.StatsResponse{
		MemoryCurrent: value("memory.current"), MemoryLimit: value("memory.max"), MemoryMaxUsage: value("memory.peak"),
		CpuUsageUsec: cpu["usage_usec"], CpuUserUsec: cpu["user_usec"], CpuSystemUsec: cpu["system_usec"],
		PidsCurrent: value("pids.current"), PidsLimit: value("pids.max"),
		OomKills: table("memory.events")["oom_kill"], MemoryStat: table("memory.stat"),
		CpuStat: cpu, Io: disks,
		SwapCurrent: value("memory.swap.current"), SwapLimit: value("memory.swap.max"),
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// io reads lines such as "254:16 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6". A
// kernel without the controller has none.
func (c cgroup) io() (list []*agentv1.BlockIO, err error) {
	data, err := c.read("io.stat")
	for line := range strings.Lines(data) {
		fields := strings.Fields(line)
		b := &agentv1.BlockIO{}
		if len(fields) < 2 {
			continue
		}
		if _, err := fmt.Sscanf(fields[0], "%d:%d", &b.Major, &b.Minor); err != nil {
			continue
		}
		for _, f := range fields[1:] {
			key, value, _ := strings.Cut(f, "=")
			n, _ := strconv.ParseUint(value, 10, 64)
			switch key {
			case "rbytes":
				b.ReadBytes = n
			case "wbytes":
				b.WriteBytes = n
			case "rios":
				b.Reads = n
			case "wios":
				b.Writes = n
			}
		}
		list = append(list, b)
	}
	return list, err
}

// Update implements agentv1.AgentService.
func (s *Service) Update(_ context.Context, r *agentv1.UpdateRequest) (*agentv1.UpdateResponse, error) {
	resources, err := parseResources(r.Resources)
	if err != nil {
		return nil, err
	}
	group, err := s.group(r.Container)
	if err != nil {
		return nil, err
	}
	apply := group.apply
	if r.Container == "" && s.pod.Load() != nil {
		apply = group.applyToPod
	}
	return &agentv1.UpdateResponse{}, apply(resources)
}
