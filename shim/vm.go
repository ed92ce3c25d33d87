package shim

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/ttrpc"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/shim/events"
	"godwit.dev/godwit/vmm"
)

// VM is the one VM of a shim. Its tasks run in it; the owner ends it.
type VM struct {
	namespace, id string // of its record
	host          *Host
	dir           string // durable
	log           *slog.Logger
	events        *events.Queue
	life          context.Context // ends with the shim

	mu      sync.Mutex // guards what follows, and the tasks; never held over IO
	state   State
	journal *Journal // replaced, never changed
	machine vmm.Machine
	agent   Agent
	owner   *Task
	tasks   map[string]*Task // by containerd's id; the owner too
	server  *ttrpc.Server    // of the machine socket
	adopted bool             // its shim died: containerd has no task of it

	nic      nicSet
	clock    guestClock
	vmm      vmmFacts
	origin   origin
	op       orders
	postcopy postcopy
	traffic  traffic
	writes   journalWrites
	ends     endings
}

// newVM has one task of the same id, which owns it.
func newVM(ctx context.Context, log *slog.Logger, q *events.Queue, namespace, id string) *VM {
	vm := &VM{
		namespace: namespace, id: id, life: ctx, state: New, events: q, log: log.With("vm", namespace+"/"+id),
		tasks: map[string]*Task{}, clock: guestClock{stood: make(chan struct{}, 1)},
	}
	vm.owner = vm.newTask(id)
	return vm
}

// origin is where this incarnation came from; vm.mu guards it.
type origin struct {
	restored bool      // from a snapshot
	resumed  time.Time // when it first ran then; zero: not yet, or under another shim
	arrival  *arrival  // from another node that streams it here
}

// orders are those of godwitd and containerd that are under way, and those that are over; vm.mu
// guards them.
type orders struct {
	capture  *capture // while an operation holds the VM
	upload   *capture // the last checkpoint, whose VM has gone on
	calls    int      // of containerd that change something in the guest, under way
	past     past     // attempts that are over
	offered  *offered // the identity for a live move to come
	progress progress
	cutShort atomic.Bool // an operation, whose caller is to hear that
}

// journalWrites are in an order of their own; see vm_journal.go.
type journalWrites struct {
	mu    sync.Mutex // held while the journal is written
	draft []byte     // of the next one, on disk; mu guards it
}

// endings happen once.
type endings struct {
	once, withVMM sync.Once
}

// Resume is what a snapshot says about the task in it.
type Resume struct {
	BootID   string         `json:"bootID"`
	UptimeMS uint64         `json:"uptimeMS"`
	Init     client.Offsets `json:"init"`
	Execs    []Along        `json:"execs,omitempty"` // of a VM that moves
	// Nowhere: the task had no output, as with containerd's null IO.
	Nowhere bool `json:"nowhere,omitempty"`
}

// guest answers the agent; nil before the boot.
func (vm *VM) guest() Agent {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.agent
}

func (vm *VM) spec() *spec.Spec { return vm.noted().Spec }
