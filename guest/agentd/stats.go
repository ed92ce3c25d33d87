package agentd

import (
	"context"

	agentv1 "godwit.dev/godwit/api/agent/lean"
)

// Stats implements agentv1.AgentService.
func (s *Service) Stats(context.Context, *agentv1.StatsRequest) (*agentv1.StatsResponse, error) {
	cpu := s.cgroup.table("cpu.stat")
	return &agentv1.StatsResponse{
		MemoryCurrent: s.cgroup.value("memory.current"), MemoryLimit: s.cgroup.value("memory.max"),
		MemoryMaxUsage: s.cgroup.value("memory.peak"),
		CpuUsageUsec:   cpu["usage_usec"], CpuUserUsec: cpu["user_usec"], CpuSystemUsec: cpu["system_usec"],
		PidsCurrent: s.cgroup.value("pids.current"), PidsLimit: s.cgroup.value("pids.max"),
		OomKills: s.cgroup.oomKills(), MemoryStat: s.cgroup.table("memory.stat"),
	}, nil
}

// Update implements agentv1.AgentService.
func (s *Service) Update(_ context.Context, r *agentv1.UpdateRequest) (*agentv1.UpdateResponse, error) {
	resources, err := parseResources(r.Resources)
	if err != nil {
		return nil, err
	}
	return &agentv1.UpdateResponse{}, s.cgroup.apply(resources)
}
