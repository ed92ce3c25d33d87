package shim

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/turn"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
)

// pod is what a VM has in addition if CRI made it as a pod. Its containers are members: tasks that come and go while
// the VM runs. The owner is the task of the sandbox, whose init is the guest's sandbox process.
type pod struct {
	vm *VM
	// changing orders the changes of the pod's disks, volumes and members. It is taken before the VM's lock. The guest is
	// asked meanwhile, so that who waits for it has a bound.
	changing turn.Turn
	// syncing orders the revisions of volumes that the guest is told, and guards revision and told.
	syncing  sync.Mutex
	revision uint64
	told     map[string][sha256.Size]byte // what each volume was told to hold, by its id
	early    early                        // before the traffic of a wake
	added    chan struct{}                // has an element after a volume came
	doubtful map[string]bool              // disks of which it is not known whether the VMM has them; changing guards it
	patience time.Duration                // with a guest that is asked right after a wake
	removals *removals
	run      *movedRun // that is under way; the VM's lock guards it
	stop     *podStop
}

// member is a task that is a container of a pod: its end is not the VM's. The VM's lock guards holder, abandon and
// ending.
type member struct {
	t               *Task
	name            string        // CRI's, which stays the same when the container is made anew
	holder          proc.ID       // its sandbox process
	abandon         func()        // ends the Create that is under way
	finished        sync.Once     // orders who ends it, once it has run
	ending          chan struct{} // closed when a container that never ran has ended; nil: that has not begun
	termination     *os.File      // of the host, for its last words; nil: none
	terminationPath string        // of that file in the container
	ended           *journal.Exit // of a restored pod: it had ended in the snapshot, so
}

// isPod reports whether CRI made the VM as a pod. Before Create has written the journal it is not known.
func (vm *VM) isPod() bool {
	j := vm.journal.Load()
	return j != nil && j.Spec != nil && j.Spec.Pod != nil
}

// refuse refuses what is done to a VM as a whole, if it is a pod: CRI ends what is not running.
func (p *pod) refuse(what string) error {
	if !p.vm.isPod() {
		return nil
	}
	return fmt.Errorf("%s a task of pod %s: its containers run as long as their VM: %w", what, p.vm.id,
		errdefs.ErrNotImplemented)
}

// containerOf is the task's container in sp; nil: it has none there.
func (t *Task) containerOf(sp *spec.Spec) *spec.Container {
	if t.member == nil {
		return sp.Container
	}
	if m := sp.Pod.Member(t.guest); m != nil {
		return &m.Container
	}
	return nil
}

// bundleDir is the task's bundle. vm.mu is held.
func (t *Task) bundleDir() string {
	if t.member != nil {
		return t.bundle.Dir
	}
	return t.vm.journal.Load().Bundle
}

// podDisk makes the disk that takes what the containers of a pod write.
func (c *creation) podDisk(ctx context.Context, dir string) error {
	set, err := c.host.Disks.PrepareScratch(ctx, DisksRequest{
		Namespace: c.vm.namespace, ID: c.vm.id, Dir: dir, WritableSize: c.bundle.WritableSize,
	})
	if err != nil {
		return err
	}
	return c.vm.write(func(j *journal.Journal) {
		s := j.Spec.Clone()
		s.Disks = set.slotted()
		s.Pod.Writable = set.Writable
		j.Spec, j.Disks = s, set.Files
	})
}

// setup makes in the guest what the containers share.
func (p *pod) setup(ctx context.Context, agent Agent, sp *spec.Spec) error {
	d := sp.Disk(sp.Pod.Writable)
	_, err := agent.SetupPod(ctx, &agentv1.SetupPodRequest{
		Hostname: sp.Pod.Hostname, Sysctl: sp.Pod.Sysctl, Writable: &agentv1.Disk{Serial: d.Serial, Type: d.Type},
	})
	return err
}
