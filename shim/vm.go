package shim

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/ttrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/guest"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/events"
	"godwit.dev/godwit/vmm"
)

// VM is the one VM of a shim, and its task.
type VM struct {
	namespace, id string
	host          *Host
	dir           string // durable
	bundle        *bundle.Bundle
	log           *slog.Logger
	events        *events.Queue
	life          context.Context // ends with the shim
	created       chan struct{}   // closed when Create is over

	mu          sync.Mutex // guards what follows; never held over IO
	state       State
	journal     *Journal // replaced, never changed
	machine     vmm.Machine
	agent       Agent
	nics        Attachment
	init        *process
	execs       map[string]*process
	renounced   []*process // execs given up in their Start, until the guest has ended them
	traffic     traffic
	stood       chan struct{}      // holds one word: the VM has stood still, and its clock is behind
	clockError  string             // of the last try to set it
	abortStart  context.CancelFunc // while Starting
	enforcing   bool               // SIGKILL was sent to init
	startOver   chan struct{}      // closed when the Start that has begun is over
	capture     *capture           // while an operation holds the VM
	upload      *capture           // the last checkpoint, whose VM has gone on
	calls       int                // of containerd that change something in the guest, under way
	past        past               // attempts that are over
	offered     *offered           // the identity for a live move to come
	arrival     *arrival           // of a VM that another node streams here
	stats       *agentv1.StatsResponse
	asking      chan struct{} // for them; closed when the guest has answered, or has not
	silentStats bool          // it let the last one who asked wait
	oom         bool          // the container has met its memory limit
	signals     []pending     // that came while the VM was paused
	incarnation uint64        // execs so far
	restored    bool          // this incarnation came from a snapshot
	resumed     time.Time     // when that first ran; zero: not yet, or under another shim
	networkKind string
	progress    progress
	server      *ttrpc.Server // of the machine socket
	adopted     bool          // its shim died: containerd has no task of it
	vmmVersion  string
	facts       vmm.Facts // of the VMM that it is booted with
	cloned      bool      // started as a copy of a template
	overhead    uint64    // of the VMM, as its driver says
	oomKills    uint64    // in the host's cgroup before the VMM was started
	endReason   string    // why the VMM ended by itself
	tracking    string    // how changed pages of RAM are found
	leases      leases
	fills       *filling // RAM that comes while the VM runs; nil: it is whole

	journalMu sync.Mutex // orders writes of the journal
	draft     []byte     // of the next one, on disk; journalMu guards it
	halting   sync.Mutex // held while the VM is halted, or goes on, as long as its RAM comes
	plugging  sync.Mutex // held while NICs go or come
	ejects    uint64     // how often they went; plugging guards it
	telling   sync.Mutex // held while the workload is told something
	watchers  sync.WaitGroup
	ending    sync.Once
	mourning  sync.Once
	cutShort  atomic.Bool // an operation, whose caller is to hear that
}

// Resume is what a snapshot says about the task in it.
type Resume struct {
	BootID   string        `json:"bootID"`
	UptimeMS uint64        `json:"uptimeMS"`
	Init     guest.Offsets `json:"init"`
	Execs    []Along       `json:"execs,omitempty"` // of a VM that moves
	// Nowhere: the task had no output, as with containerd's null IO.
	Nowhere bool `json:"nowhere,omitempty"`
}

// pid is what containerd shows: the holder's. vm.mu is held.
func (vm *VM) pid() uint32 {
	if vm.journal == nil {
		return 0
	}
	return uint32(vm.journal.Holder.PID)
}

// guest answers the agent; nil before the boot.
func (vm *VM) guest() Agent {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.agent
}

func (vm *VM) spec() *spec.Spec { return vm.noted().Spec }

// hookState is what OCI hooks get on stdin. A task that has stopped has no process: its
// pid may be another's by then.
func (vm *VM) hookState(status specs.ContainerState) specs.State {
	s := specs.State{Version: specs.Version, ID: vm.id, Status: status, Bundle: vm.bundle.Dir, Annotations: vm.bundle.Annotations}
	if status != specs.StateStopped {
		s.Pid = vm.noted().Holder.PID
	}
	return s
}
