package shim

import (
	"context"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/typeurl/v2"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

const (
	// guestPIDs is added to the pid of a process in the guest. The kernel's largest pid is 4194304
	// (PID_MAX_LIMIT), on the host as in the guest: no process of the host has such a one.
	guestPIDs = 4 << 20
	// maxPIDs bounds what is believed of a guest: an answer of ttrpc holds less than 4 MiB.
	maxPIDs = 1 << 16
	// pidsBound is how long Pids waits for the guest.
	pidsBound = time.Second
)

// Pids lists the task's own pid, which is on the host. The other processes of the guest follow, under ids
// that the host has no process of. Where the guest does not answer, execs are listed under the task's
// pid, and no others. The list is never empty: containerd would take the shim for a leaked one.
func (s *Service) Pids(ctx context.Context, r *taskapi.PidsRequest) (*taskapi.PidsResponse, error) {
	s.afterDelete(ctx, r.GetID())
	return on(s, r.GetID(), func(t *Task) (*taskapi.PidsResponse, error) {
		guest := t.guestProcesses(ctx)
		pids := make(map[string]uint32)
		for _, p := range guest.GetProcesses() {
			pids[p.GetId()] = p.GetPid()
		}
		vm := t.vm
		vm.mu.Lock()
		defer vm.mu.Unlock()
		out := &taskapi.PidsResponse{Processes: []*tasktypes.ProcessInfo{{Pid: t.pid()}}}
		for _, p := range t.execs {
			if !p.runs() {
				continue
			}
			info, err := typeurl.MarshalAnyToProto(&options.ProcessDetails{ExecID: p.id})
			if err != nil {
				return nil, err
			}
			pid, known := shownPID(pids[p.guest])
			if !known {
				pid = t.pid()
			}
			out.Processes = append(out.Processes, &tasktypes.ProcessInfo{Pid: pid, Info: info})
		}
		for _, p := range guest.GetOthers()[:min(len(guest.GetOthers()), maxPIDs)] {
			if pid, known := shownPID(p.GetPid()); known {
				out.Processes = append(out.Processes, &tasktypes.ProcessInfo{Pid: pid})
			}
		}
		return out, nil
	})
}

// shownPID is the id for a process in the guest; not known is one that no kernel gives.
func shownPID(pid uint32) (shown uint32, known bool) {
	if pid == 0 || pid > guestPIDs {
		return 0, false
	}
	return guestPIDs + pid, true
}

// guestProcesses asks the guest, where it runs; nil: it has not answered.
func (t *Task) guestProcesses(ctx context.Context) *agentv1.ProcessesResponse {
	vm := t.vm
	stopped := vm.vmmStopped()
	vm.mu.Lock()
	agent, runs := vm.agent, vm.state == Running && vm.agent != nil && !stopped
	vm.mu.Unlock()
	if !runs {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pidsBound)
	defer cancel()
	r, err := agent.Processes(ctx, &agentv1.ProcessesRequest{Container: t.container()})
	if err != nil {
		return nil
	}
	return r
}
