package agentd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
	cpu := group.table("cpu.stat")
	return &agentv1.StatsResponse{
		MemoryCurrent: group.value("memory.current"), MemoryLimit: group.value("memory.max"),
		MemoryMaxUsage: group.value("memory.peak"),
		CpuUsageUsec:   cpu["usage_usec"], CpuUserUsec: cpu["user_usec"], CpuSystemUsec: cpu["system_usec"],
		PidsCurrent: group.value("pids.current"), PidsLimit: group.value("pids.max"),
		OomKills: group.oomKills(), MemoryStat: group.table("memory.stat"),
		CpuStat: cpu, Io: group.io(),
		SwapCurrent: group.value("memory.swap.current"), SwapLimit: group.value("memory.swap.max"),
	}, nil
}

// io reads lines such as "254:16 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6". A
// kernel without the controller has none.
func (c cgroup) io() (list []*agentv1.BlockIO) {
	data, _ := os.ReadFile(filepath.Join(string(c), "io.stat"))
	for line := range strings.Lines(string(data)) {
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
	return list
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
