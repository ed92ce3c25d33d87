package transition

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Lift answers rec as it is under an incarnation of the store; one that is of it already is answered as it is. A VM
// that no node has goes on under a lifted generation. A VM that a node has keeps the number of the node's journal,
// and the next owner's number is lifted. Until rivals are settled, what they say is still measured by the copy.
func Lift(rec *nodev1.Record, incarnation uint64) *nodev1.Record {
	if rec == nil || rec.GetIncarnation() >= incarnation {
		return rec
	}
	rec = proto.CloneOf(rec)
	if rec.GetIncarnation() == 0 {
		rec.Known = rec.GetGeneration()
	}
	rec.Incarnation = incarnation
	if !rec.GetRivals() {
		rec.Copied = rec.GetGeneration()
	}
	if rec.GetOwner().GetNode() == "" && rec.GetOperation() == nil {
		rec.Generation = record.Lifted(rec.GetGeneration(), incarnation)
	}
	return rec
}

// Closed says why no record of a store changes now; nil: they do. It passes once somebody has
// done what the text asks for.
func Closed(state *nodev1.StoreState) error {
	switch d := state.GetBehind(); {
	case d != nil && d.GetNode() == "":
		return fmt.Errorf("no VM changes its state now: the controller's store is older than it was: %s. It was put back "+
			"from a copy, or is another one. To go on with it: godwit controller restore: "+
			"%w", d.GetReason(), errdefs.ErrUnavailable)
	case d != nil:
		return fmt.Errorf("no VM changes its state now: the controller's store is older than what node %s holds: %s. "+
			"To go on with a store that was put back from a copy: godwit controller restore. To go on without a node that "+
			"lies: godwit controller retire %s: %w",
			d.GetNode(), d.GetReason(), d.GetNode(), errdefs.ErrUnavailable)
	case state.GetWaiting() && len(state.GetMissing()) > 0:
		return fmt.Errorf("no VM changes its state now: the controller's store was put back from a copy, and nodes have not "+
			"said what they hold: %s. To go on: start godwitd there. To go on without a node that is gone for good, and runs "+
			"nothing: godwit controller retire NODE: %w",
			strings.Join(state.GetMissing(), ", "), errdefs.ErrUnavailable)
	case state.GetWaiting():
		return fmt.Errorf("no VM changes its state now: the controller's store was put back from a copy, and what nodes "+
			"said is being settled. To go on, try again: %w", errdefs.ErrUnavailable)
	}
	return nil
}

// disputed refuses a claim on a VM whose owner cannot be told. Where no node says that it has the VM, an order by
// force decides.
func disputed(rec *nodev1.Record, force bool, call string) error {
	if rec.GetConflict() == "" || force && !rec.GetRivals() {
		return nil
	}
	return held(rec, call)
}

// Doubted refuses a change of a VM's record of which a node says that it is older than what that node holds. It
// does so until the record's owner has refuted it, or a person decides. One node's word stops no more than that:
// the VM of any owner that it names, and what is its own.
func Doubted(state *nodev1.StoreState, vm *nodev1.VM, rec *nodev1.Record) error {
	for _, d := range state.GetDoubts() {
		switch {
		case d.GetRefuted() || d.GetVm() != nil && !proto.Equal(d.GetVm(), vm) || d.GetVm() == nil &&
			!ofNode(rec, d.GetNode()):
		default:
			return &DoubtedError{VM: vm, Node: d.GetNode(), Reason: d.GetReason(), asked: askedOwner(d), lies: lies(d)}
		}
	}
	return nil
}

// Contradicted says which node contradicts the records, whatever VM it names; nil: none does. One word may mean that
// the store went back in time. Such a store does not know where other VMs sleep.
func Contradicted(state *nodev1.StoreState) error {
	for _, d := range state.GetDoubts() {
		if !d.GetRefuted() {
			return fmt.Errorf("node %s contradicts the records: %s. Meanwhile no missing VM is given up, and nothing is "+
				"deleted that no record names. To go on with a store that was put back from a copy: godwit controller restore. "+
				"%s: godwit controller retire %s: %w", d.GetNode(), d.GetReason(), lies(d), d.GetNode(), errdefs.ErrUnavailable)
		}
	}
	return nil
}

// lies says when the node of a doubt is to be retired. One that was away while its VM was given up does not lie.
func lies(d *nodev1.Doubt) string {
	if d.GetOwner() == "" && !d.GetCredible() {
		return fmt.Sprintf("If node %s has no such VM, it lies", d.GetNode())
	}
	return fmt.Sprintf("To go on if node %s lies", d.GetNode())
}

// askedOwner is the node that is asked about a doubt, and has not answered; empty: none is.
func askedOwner(d *nodev1.Doubt) string {
	if d.GetCredible() {
		return ""
	}
	return d.GetOwner()
}

// DoubtedError says that the record of a VM does not change because of what a node says.
type DoubtedError struct {
	VM     *nodev1.VM
	Node   string // by whose word
	Reason string
	asked  string
	lies   string // when the node is to be retired
}

// Error names the node and the remedy.
func (e *DoubtedError) Error() string {
	if e.asked != "" {
		return fmt.Sprintf("VM %s does not change its state now: node %s says of it: %s. It belongs to node %s, which is "+
			"asked. To go on if node %s lies: godwit controller retire %s: %v",
			name(e.VM), e.Node, e.Reason, e.asked, e.Node, e.Node, errdefs.ErrUnavailable)
	}
	return fmt.Sprintf("VM %s does not change its state now. What the controller knows of it is older than what node %s "+
		"holds: %s. To go on with a store that was put back from a copy: godwit controller restore. %s: "+
		"godwit controller retire %s: %v", name(e.VM), e.Node, e.Reason, e.lies, e.Node, errdefs.ErrUnavailable)
}

// Unwrap gives the class.
func (*DoubtedError) Unwrap() error { return errdefs.ErrUnavailable }

// ofNode reports whether a node has the VM by its record. Of a VM without an owner it reports whether that node had
// it last.
func ofNode(rec *nodev1.Record, node string) bool {
	return node != "" && cmp.Or(rec.GetOwner().GetNode(), rec.GetHome()) == node
}

// Retired reports whether a node is not waited for any more.
func Retired(state *nodev1.StoreState, node string) bool {
	return slices.Contains(state.GetRetired(), node)
}
