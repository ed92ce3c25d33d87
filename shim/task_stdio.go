package shim

import "godwit.dev/godwit/shim/cgroup"

// open is openStreams for a process of the VM. A logging program outlives the task: it
// is no part of the task's cgroup.
func (t *Task) open(id string, stdio Stdio) (*streams, error) {
	vm := t.vm
	st, err := openStreams(vm.namespace, id, stdio, t.logOf(stdio))
	if err != nil {
		return nil, err
	}
	t.freeLogger(st)
	return st, nil
}

func (t *Task) freeLogger(st *streams) {
	vm := t.vm
	if st.logger == 0 {
		return
	}
	if err := cgroup.Leave(vm.noted().Cgroup, st.logger); err != nil {
		vm.log.Warn("move logger out of the task's cgroup", "error", err)
	}
}
