package client

import (
	"fmt"
	"strings"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Problem is an error as a user reads it: what is wrong, why, and what to do. Each part is whole sentences, or empty.
type Problem struct {
	What, Why, Remedy string
	Cause             error // has the class
}

// Error is the parts in their order.
func (p *Problem) Error() string {
	return strings.Join(strings.Fields(strings.Join([]string{p.What, p.Why, p.Remedy}, " ")), " ")
}

// Unwrap gives the class.
func (p *Problem) Unwrap() error { return p.Cause }

// Held says who has a VM that a call wanted, and what can be done from there. name is how the user calls the VM, and
// here the node that was asked; empty: it is not known.
func Held(rec *nodev1.Record, name, here string) *Problem {
	owner := rec.GetOwner()
	switch {
	case rec.GetRivals():
		return &Problem{What: "It is not known which node has " + name + ".", Why: sentence(rec.GetConflict()),
			Remedy: "To see what the nodes say: godwit controller status."}
	case rec.GetDeletion() != nil && owner.GetNode() != "":
		return &Problem{What: name + " is being removed.", Why: "Its last state goes to the store before that.",
			Remedy: fmt.Sprintf("To call that off: godwit rm --cancel %s.", name)}
	case rec.GetOperation() != nil:
		return busy(name, rec.GetOperation())
	case record.IsLost(rec):
		return lost(rec, name)
	case owner.GetNode() != "":
		return runs(name, owner.GetNode(), here)
	case owner.GetDigest() != "":
		return &Problem{What: name + " sleeps.",
			Remedy: fmt.Sprintf("To wake it: godwit wake %s. To give up its state: godwit rm --force %s.", name, name)}
	}
	return &Problem{What: name + " does not run.", Why: "No node has it, and it does not sleep.",
		Remedy: fmt.Sprintf("To run it again, where it was made: godwit start %s. To see all VMs: godwit ps -a.", name)}
}

// runs says where a VM is that runs.
func runs(name, node, here string) *Problem {
	if node == here {
		return &Problem{What: fmt.Sprintf("%s runs on this node, %s.", name, node),
			Remedy: fmt.Sprintf("To put it to sleep: godwit hibernate %s. To end it: godwit stop %s.", name, name)}
	}
	if here == "" {
		here = "NODE"
	}
	return &Problem{What: fmt.Sprintf("%s runs on node %s.", name, node),
		Remedy: fmt.Sprintf("To move it here: godwit migrate %s --to %s. To use it there, run the command on node %s.",
			name, here, node)}
}

// busy names the operation that a VM is under.
func busy(name string, op *nodev1.Operation) *Problem {
	p := &Problem{What: name + " is busy.", Remedy: "Wait for the end: godwit ps shows it."}
	switch op.GetKind() {
	case nodev1.Kind_KIND_HIBERNATE:
		p.Why = fmt.Sprintf("Node %s puts it to sleep.", op.GetSource())
	case nodev1.Kind_KIND_WAKE:
		p.Why = fmt.Sprintf("Node %s wakes it.", op.GetDestination())
	case nodev1.Kind_KIND_CHECKPOINT:
		p.Why = fmt.Sprintf("Node %s takes a checkpoint of it.", op.GetSource())
	case nodev1.Kind_KIND_MIGRATE:
		p.Why = fmt.Sprintf("It moves from node %s to node %s.", op.GetSource(), op.GetDestination())
		p.Remedy = fmt.Sprintf("To follow the move: godwit watch %s. To call it off: godwit abort %s.", op.GetId(),
			op.GetId())
	}
	return p
}

// lost says what is left of a VM that an operation has lost, or a store that was put back from a copy.
func lost(rec *nodev1.Record, name string) *Problem {
	p := &Problem{What: name + " has lost its newest state."}
	add := func(part *string, format string, args ...any) {
		*part = strings.TrimSpace(*part + " " + fmt.Sprintf(format, args...))
	}
	if c := rec.GetConflict(); c != "" {
		add(&p.Why, "The controller's store was put back from a copy that is older than the VM: %s", sentence(c))
	}
	if k := record.KeptOf(rec); k != nil {
		add(&p.Why, "It ended at node %s. Node %s holds it as it was before the move.", k.GetDestination(), k.GetNode())
		add(&p.Remedy, "To have that back: godwit recover --from-source %s.", name)
	}
	if d := rec.GetLost(); d != "" {
		add(&p.Why, "What it did after snapshot %s is gone.", d)
		add(&p.Remedy, "To restore that one: godwit wake --digest %s --force %s.", d, name)
	}
	add(&p.Remedy, "To give it up: godwit rm --force %s.", name)
	return p
}

// sentence begins with a capital letter, unless it begins with a name, and ends with a full stop.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	if first, _, _ := strings.Cut(text, " "); !strings.ContainsAny(first, "-_./:") && first != "godwitd" {
		text = strings.ToUpper(text[:1]) + text[1:]
	}
	if strings.ContainsAny(text[len(text)-1:], ".?!") {
		return text
	}
	return text + "."
}
