package shim

import (
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
)

// processTable has the processes of one task. It has no lock of its own: the VM's lock guards it and
// the fields of its processes, since a process starts and ends together with the state of the VM.
type processTable struct {
	init        *process
	execs       map[string]*process // by containerd's id
	orphans     []*process          // execs given up in their Start, until the guest has ended them
	incarnation uint64              // execs so far
	prefix      string              // of the ids that execs have in the guest: "c1/" of a pod's container c1
}

// find answers the process of that exec id, init for an empty one; NotFound for one that is not there.
func (p *processTable) find(execID string) (*process, error) {
	if execID == "" {
		return p.init, nil
	}
	if e, ok := p.execs[execID]; ok {
		return e, nil
	}
	return nil, fmt.Errorf("exec %s: %w", execID, errdefs.ErrNotFound)
}

// all are init and the execs; init comes last. A task that is being created has no init yet.
func (p *processTable) all() []*process {
	all := slices.Collect(maps.Values(p.execs))
	if p.init == nil {
		return all
	}
	return append(all, p.init)
}

// add adds an exec under a name that the guest has not had: it may not have forgotten an earlier exec
// of that id, or not know yet that one it was told to start is not wanted. What a checkpoint has left
// in the guest was of another generation.
func (p *processTable) add(e *process, generation uint64) {
	p.incarnation++
	e.guest = fmt.Sprintf("%s%s#%d.%d", p.prefix, e.id, generation, p.incarnation)
	p.execs[e.id] = e
}

// orphan says that e may run in the guest and that containerd does not wait for it. No operation gets
// the VM until dropOrphan.
func (p *processTable) orphan(e *process) { p.orphans = append(p.orphans, e) }

// dropOrphan says that nothing runs of e.
func (p *processTable) dropOrphan(e *process) {
	p.orphans = slices.DeleteFunc(p.orphans, func(other *process) bool { return other == e })
}
