package shim

import (
	"errors"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/typeurl/v2"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// Pids lists the task's own pid first, then the guest's processes under ids that no kernel gives. What a
// guest invents is left out, and a guest that does not answer costs no exec its entry.
func TestPidsOfTheGuest(t *testing.T) {
	w := newWorld(t).running()
	w.exec("e")
	vm, err := w.service.current()
	w.must("find VM", err)
	guest := vm.owner.execs["e"].guest
	w.agent.started = []*agentv1.Process{{Id: guest, Pid: 77}}
	w.agent.others = []*agentv1.Process{{Pid: 80}, {Pid: 0}, {Pid: 1 << 31}, {Pid: 1 << 22}}
	own := uint32(vm.journal.Load().Holder.PID)
	look := func(when string, want ...uint32) {
		t.Helper()
		r, err := w.service.Pids(ctxNS(t), &taskapi.PidsRequest{ID: "vm"})
		w.must("pids", err)
		if len(r.GetProcesses()) != len(want) {
			t.Fatalf("%s: %v, want %v", when, r.GetProcesses(), want)
		}
		for i, p := range r.GetProcesses() {
			if p.GetPid() != want[i] {
				t.Errorf("%s: entry %d is %d, want %d", when, i, p.GetPid(), want[i])
			}
		}
		details, err := typeurl.UnmarshalAny(r.GetProcesses()[1].GetInfo())
		if d, ok := details.(*options.ProcessDetails); err != nil || !ok || d.GetExecID() != "e" {
			t.Errorf("%s: the second entry tells of %v, %v", when, details, err)
		}
	}
	look("running", own, 4194304+77, 4194304+80, 2*4194304)
	w.at("processes", func() error { return errors.New("no answer") })
	look("a guest that does not answer", own, own)
}
