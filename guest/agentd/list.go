package agentd

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"
)

const (
	// listMax bounds what an answer lists, in bytes: a host of an earlier build takes 256 KiB in all.
	listMax = 200 << 10
	// entryMax is what an entry has besides its content.
	entryMax = 8
)

// Processes implements agentv1.AgentService.
func (s *Service) Processes(_ context.Context, r *agentv1.ProcessesRequest) (*agentv1.ProcessesResponse, error) {
	group, err := s.group(r.Container)
	if err != nil {
		return nil, err
	}
	pids, err := group.pids()
	if err != nil {
		return nil, err
	}
	return s.answer(r.Container, pids), nil
}

// answer lists the processes of a container, and the pids of others as far as there is room.
func (s *Service) answer(container string, pids map[uint32]bool) *agentv1.ProcessesResponse {
	all := &agentv1.ProcessesResponse{Processes: s.list(container, listMax)}
	room := listMax
	for _, p := range all.Processes {
		delete(pids, p.Pid)
		room -= sizeOf(p)
	}
	for _, pid := range slices.Sorted(maps.Keys(pids)) {
		p := &agentv1.Process{Pid: pid}
		if room -= sizeOf(p); room < 0 {
			break
		}
		all.Others = append(all.Others, p)
	}
	return all
}

func sizeOf(p *agentv1.Process) int { return len(p.AppendTo(nil)) + entryMax }

// listed is a process, and how soon it is to be in a list.
type listed struct {
	info *agentv1.Process
	rank int
	at   time.Time // of its end
}

// list answers the processes of a container, or all of them where none is named, in so many bytes. Inits come first,
// then what runs: a host looks for these. Of what has ended, and was not removed, the latest come.
func (s *Service) list(container string, room int) (list []*agentv1.Process) {
	var all []listed
	s.mu.Lock()
	for id, p := range s.processes {
		if container != "" && p.container().id != container {
			continue
		}
		one := listed{info: p.info(), rank: 1}
		if _, isInit := s.containers[id]; isInit || id == podID {
			one.rank = 0
		} else if one.info.Exited {
			one.rank, one.at = 2, p.endedAt()
		}
		all = append(all, one)
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b listed) int {
		return cmp.Or(a.rank-b.rank, b.at.Compare(a.at), cmp.Compare(a.info.Id, b.info.Id))
	})
	for _, one := range all {
		if room -= sizeOf(one.info); room < 0 {
			break
		}
		list = append(list, one.info)
	}
	return list
}
