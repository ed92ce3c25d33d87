package shim

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/turn"
	"godwit.dev/godwit/shim/events"
	"godwit.dev/godwit/vmm"
)

// VM is the one VM of a shim. Its tasks run in it; the owner ends it.
type VM struct {
	vmName
	host   *Host
	dir    string // durable
	log    *slog.Logger
	events *events.Queue
	life   context.Context // ends with the shim

	// mu guards what follows down to traffic, and the tasks: that changes together with state. It is
	// never held over IO.
	mu      sync.Mutex
	state   State
	machine vmm.Machine
	agent   Agent
	owner   *Task
	tasks   map[string]*Task // by containerd's id; the owner too
	origin  origin
	op      orders
	traffic traffic

	// Components, each with a lock of its own. mu may be held where one of these is taken to look
	// at a component, and is not taken by one that holds its own.
	journal  vmJournal // empty before Create
	nic      *nicSet
	clock    *guestClock
	vmm      vmmFacts
	postcopy *postcopy
	tracking *ramTracking
	socket   *machineSocket
	notices  *notices
	ending   *ending
	pod      *pod
}

// vmName is the name of the VM's record.
type vmName struct{ namespace, id string }

// newVM has one task, of containerd's id task, which owns it.
func newVM(ctx context.Context, log *slog.Logger, q *events.Queue, namespace, id, task string) *VM {
	vm := &VM{
		vmName: vmName{namespace, id}, life: ctx, state: New, events: q, log: log.With("vm", namespace+"/"+id),
		tasks: map[string]*Task{},
	}
	vm.journal.vm = vm
	vm.ending = &ending{vm: vm}
	vm.pod = &pod{vm: vm, changing: turn.New(), added: make(chan struct{}, 1), told: map[string][32]byte{},
		doubtful: map[string]bool{}, patience: undoBound, stop: &podStop{vm: vm},
		removals: &removals{vm: vm, bound: undoBound}}
	vm.postcopy = &postcopy{vm: vm}
	vm.notices = &notices{vm: vm}
	vm.socket = &machineSocket{log: vm.log}
	vm.tracking = &ramTracking{of: vm, journal: &vm.journal, log: vm.log}
	vm.clock = newGuestClock(vm, vm.log)
	vm.nic = newNICSet(vm, &vm.journal, vm.log)
	vm.owner = vm.newTask(task)
	return vm
}

// origin is where this incarnation came from; vm.mu guards it.
type origin struct {
	restored bool      // from a snapshot
	adopted  bool      // from a shim that died: containerd has no task of it
	resumed  time.Time // when it first ran then; zero: not yet, or under another shim
	arrival  *arrival  // from another node that streams it here
}

// orders are those of godwitd and containerd that are under way, and those that are over; vm.mu
// guards them.
type orders struct {
	capture  *capture        // while an operation holds the VM
	upload   *capture        // the last checkpoint, whose VM has gone on
	resuming *resuming       // the end of a hold, while the VM is to run on
	calls    int             // of containerd that change something in the guest, under way
	aborted  abortedAttempts // attempts that are over
	offered  *offered        // the identity for a live move to come
	progress progress
}

// guest answers the agent; nil before the boot.
func (vm *VM) guest() Agent {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.agent
}

// current answers the VMM and the state that the VM has now.
func (vm *VM) current() (vmm.Machine, State) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.machine, vm.state
}

func (vm *VM) nicBound() time.Duration { return time.Duration(vm.host.Config.Timeouts.NIC) }

func (vm *VM) spec() *spec.Spec { return vm.journal.Load().Spec }
