package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/client"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// problem is an error as a user reads it: what is wrong, why, and what to do. Each part is whole sentences, or empty.
type problem struct {
	what, why, remedy string
	cause             error // has the class
}

// Error is the parts in their order.
func (p *problem) Error() string {
	return strings.Join(strings.Fields(strings.Join([]string{p.what, p.why, p.remedy}, " ")), " ")
}

// Unwrap gives the class.
func (p *problem) Unwrap() error { return p.cause }

// explain is the one place where an error becomes what a user reads. It goes by types: the text of an error that has
// none of them is shown without its class.
func (o *options) explain(err error) *problem {
	var own *problem
	var held *record.HeldError
	var command *client.CommandError
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &held) && held.Record != nil:
		p := o.heldBy(held.Record)
		p.cause = err
		return p
	case errors.As(err, &command):
		return notStarted(command)
	case errors.Is(err, context.Canceled):
		return &problem{what: "Interrupted.", why: sentence(bare(err)), cause: err}
	}
	return &problem{what: sentence(bare(err)), cause: err}
}

// notStarted says why a command could not be run. The reason is what comes after "exec: ", as runtimes write it. The
// steps on the way to it are for --verbose.
func notStarted(err *client.CommandError) *problem {
	why := bare(err)
	if i := strings.Index(why, "exec: "); i >= 0 {
		why = why[i+len("exec: "):]
	}
	p := &problem{what: "The command cannot be run.", why: sentence(why), cause: err}
	if err.Code == client.NoCommand {
		p.what, p.remedy = "There is no such command in the VM.", "Name one that the image has, or its whole path."
	}
	return p
}

// bare is the text of an error without the classes at its end: the exit code and -o json tell those.
func bare(err error) string {
	text := strings.TrimPrefix(err.Error(), "godwit: ")
	for found := true; found; {
		found = false
		for _, c := range classes {
			if rest, cut := strings.CutSuffix(text, ": "+c.class.Error()); cut {
				text, found = rest, true
			}
		}
	}
	return strings.TrimSuffix(text, ": "+context.Canceled.Error())
}

// sentence ends a text with a full stop, if it has no end of its own.
func sentence(text string) string {
	if text == "" || strings.ContainsAny(text[len(text)-1:], ".?!") {
		return text
	}
	return text + "."
}

// heldBy says who has a VM that a verb wanted, and what can be done from there.
func (o *options) heldBy(rec *nodev1.Record) *problem {
	vm := o.shown(rec.GetVm())
	switch owner := rec.GetOwner(); {
	case rec.GetOperation() != nil && !rec.GetRivals():
		return busy(vm, rec.GetOperation())
	case rec.GetRivals():
		return &problem{what: "It is not known which node has " + vm + ".", why: capital(sentence(rec.GetConflict())),
			remedy: "To see what the nodes say: godwit controller status."}
	case record.IsLost(rec):
		return &problem{what: vm + " has lost its newest state.", why: capital(sentence(record.LostText(rec)))}
	case owner.GetNode() != "":
		return &problem{what: fmt.Sprintf("%s runs on node %s.", vm, owner.GetNode()),
			remedy: fmt.Sprintf("To move it: godwit migrate %s --to NODE. To put it to sleep: godwit hibernate %s. "+
				"To end it, on that node: godwit stop %s.", vm, vm, vm)}
	case owner.GetDigest() != "":
		return &problem{what: vm + " sleeps.",
			remedy: fmt.Sprintf("To wake it: godwit wake %s. To give up its state: godwit rm --force %s.", vm, vm)}
	}
	return &problem{what: vm + " does not run.", why: "No node has it, and it does not sleep.",
		remedy: "To see all VMs: godwit ps -a."}
}

// busy names the operation that a VM is under.
func busy(vm string, op *nodev1.Operation) *problem {
	p := &problem{what: vm + " is busy.", remedy: "Wait for the end: godwit ps shows it."}
	switch op.GetKind() {
	case nodev1.Kind_KIND_HIBERNATE:
		p.why = fmt.Sprintf("Node %s puts it to sleep.", op.GetSource())
	case nodev1.Kind_KIND_WAKE:
		p.why = fmt.Sprintf("Node %s wakes it.", op.GetDestination())
	case nodev1.Kind_KIND_CHECKPOINT:
		p.why = fmt.Sprintf("Node %s takes a checkpoint of it.", op.GetSource())
	case nodev1.Kind_KIND_MIGRATE:
		p.why = fmt.Sprintf("It moves from node %s to node %s.", op.GetSource(), op.GetDestination())
		p.remedy = fmt.Sprintf("To follow the move: godwit watch %s. To call it off: godwit abort %s.", op.GetId(),
			op.GetId())
	}
	return p
}

// shown is how a user of this command line names a VM.
func (o *options) shown(vm *nodev1.VM) string {
	if vm.GetNamespace() == o.namespace {
		return vm.GetId()
	}
	return fullName(vm)
}
