package shim

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/vmm"
)

// nicVM is the VM as its NICs see it.
type nicVM interface {
	current() (vmm.Machine, State)
	guest() Agent // nil: no agent was met yet
	write(change func(*journal.Journal)) error
	nicBound() time.Duration // how long a guest may take to let go of a NIC, or to use it
}

// nicSet are the NICs of the VM on their taps.
type nicSet struct {
	vm      nicVM
	journal *vmJournal
	log     *slog.Logger
	leases  leases

	mu       sync.Mutex // guards attached and kind; the VM's lock may be held where it is taken
	attached Attachment
	kind     string // what the guest is connected to

	plugging sync.Mutex // held while NICs go or come
	ejects   uint64     // how often they went; plugging guards it
}

func newNICSet(vm nicVM, j *vmJournal, log *slog.Logger) *nicSet {
	return &nicSet{vm: vm, journal: j, log: log}
}

func (n *nicSet) spec() *spec.Spec { return n.journal.Load().Spec }

// wiring is nil where the VM has no network.
func (n *nicSet) wiring() Attachment {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.attached
}

// attach notes what the VM is wired to; nil: nothing.
func (n *nicSet) attach(a Attachment) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.attached = a
}

// connectedTo notes what the guest is connected to and logs once if that is nothing.
func (n *nicSet) connectedTo(kind string) {
	n.mu.Lock()
	n.kind = kind
	n.mu.Unlock()
	if kind == "loopback" {
		n.log.Info("the task's network namespace has no interface: the guest has loopback only")
	}
}

// connection answers what the guest is connected to; empty: that is not known yet.
func (n *nicSet) connection() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.kind
}

// up sets the links up; there may be none.
func (n *nicSet) up(ctx context.Context) error {
	if a := n.wiring(); a != nil {
		return a.Up(ctx)
	}
	return nil
}

// announceBound is how long the network may take to be told where the VM is.
const announceBound = 5 * time.Second

// announce tells the network where the VM is. It stops where the VM stands still meanwhile.
func (n *nicSet) announce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, announceBound)
	defer cancel()
	nics := n.wiring()
	if nics == nil {
		return // taken back already
	}
	if err := nics.Announce(ctx); err != nil && !errdefs.IsFailedPrecondition(err) {
		n.log.Warn("announce", "error", err)
	}
}
