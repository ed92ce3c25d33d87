package decide_test

import (
	"testing"
	"time"

	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// cleaning is a hibernate that was committed so long ago, and whose source has not cleaned up.
func cleaning(node string, ago time.Duration) *nodev1.Operation {
	op := operation(nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_CLEANING)
	op.Source, op.CommittedUnixNano = node, now.Add(-ago).UnixNano()
	return op
}

// sleptAt has the VM sleep by such a hibernate. No one vouches for the node.
func sleptAt(node string, ago time.Duration) func(*decide.Resolve) {
	return func(o *decide.Resolve) { o.Record.Owner, o.Record.Operation = asleep, cleaning(node, ago) }
}

func TestNextSandboxEnd(t *testing.T) {
	gone := func(change func(*decide.SandboxEnd)) func(*decide.SandboxEnd) {
		return func(o *decide.SandboxEnd) { o.Sandbox = nil; change(o) }
	}
	for name, test := range map[string]struct {
		change func(*decide.SandboxEnd)
		do     decide.Do
		waits  decide.Reason
	}{
		"it is there":         {change: func(*decide.SandboxEnd) {}, do: decide.None},
		"it is being deleted": {change: func(o *decide.SandboxEnd) { o.Sandbox.Deleted = true }, do: decide.None},
		"it is gone":          {change: gone(func(*decide.SandboxEnd) {}), do: decide.RemoveRecord},
		"it was made again":   {change: func(o *decide.SandboxEnd) { o.Sandbox.UID = podBefore }, do: decide.RemoveRecord},
		"gone, a node has the VM": {change: gone(func(o *decide.SandboxEnd) { o.Record.Owner = &nodev1.Owner{Node: "a"} }),
			do: decide.None, waits: decide.ReasonNodeSilent},
		"gone, and so is its node": {change: gone(func(o *decide.SandboxEnd) {
			o.Record.Owner, o.Fenced = &nodev1.Owner{Node: "a"}, true
		}), do: decide.OrderGiveUp},
		"gone, its node is lost while it goes to sleep": {change: gone(func(o *decide.SandboxEnd) {
			o.Record.Owner, o.Fenced = &nodev1.Owner{Node: "a"}, true
			o.Record.Operation = operation(nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_TRANSFERRING)
			o.Record.Operation.Source = "a"
		}), do: decide.OrderGiveUp},
		"gone, its node is lost before the hibernate is cleaned up": {change: gone(func(o *decide.SandboxEnd) {
			o.Record.Operation, o.Fenced = operation(nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_CLEANING), true
			o.Record.Operation.Source = "a"
		}), do: decide.OrderGiveUp},
		"gone, its node is away for long before the hibernate is cleaned up": {change: gone(func(o *decide.SandboxEnd) {
			o.Record.Operation = cleaning("a", time.Hour)
		}), do: decide.OrderGiveUp},
		"gone, its hibernate is cleaned up": {change: gone(func(o *decide.SandboxEnd) {
			o.Record.Operation = cleaning("a", time.Second)
		}), do: decide.None, waits: decide.ReasonOperation},
		"gone, the node of its wake is lost": {change: gone(func(o *decide.SandboxEnd) {
			o.Record.Operation, o.Fenced = operation(nodev1.Kind_KIND_WAKE, nodev1.Phase_PHASE_TRANSFERRING), true
			o.Record.Operation.Destination = "a"
		}), do: decide.OrderGiveUp},
		"there, and its node is lost": {change: func(o *decide.SandboxEnd) {
			o.Record.Owner, o.Fenced = &nodev1.Owner{Node: "a"}, true
		}, do: decide.None},
		"gone, it wakes": {change: gone(func(o *decide.SandboxEnd) {
			o.Record.Operation = operation(nodev1.Kind_KIND_WAKE, nodev1.Phase_PHASE_TRANSFERRING)
		}), do: decide.OrderAbort},
		"gone, it goes to sleep": {change: gone(func(o *decide.SandboxEnd) {
			o.Record.Operation = operation(nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_TRANSFERRING)
		}), do: decide.None, waits: decide.ReasonOperation},
		"a VirtualMachine's": {change: gone(func(o *decide.SandboxEnd) { o.Record.Uid = podBefore }), do: decide.None},
		"a node's":           {change: gone(func(o *decide.SandboxEnd) { o.Record.MadeBy = "a" }), do: decide.None},
		"no record":          {change: gone(func(o *decide.SandboxEnd) { o.Record = nil }), do: decide.None},
		"it does not say whose": {change: func(o *decide.SandboxEnd) { o.Noted, o.Sandbox = "", nil }, do: decide.None,
			waits: decide.ReasonStarting},
		"made, and nothing else": {change: func(o *decide.SandboxEnd) {
			o.Noted, o.Sandbox, o.Record.Owner, o.Made = "", nil, nil, now.Add(-time.Minute)
		}, do: decide.None, waits: decide.ReasonStarting},
		"made long ago, and nothing else": {change: func(o *decide.SandboxEnd) {
			o.Noted, o.Sandbox, o.Record.Owner, o.Made = "", nil, nil, now.Add(-2*time.Hour)
		}, do: decide.RemoveRecord},
		"made long ago, and it has run": {change: func(o *decide.SandboxEnd) {
			o.Noted, o.Sandbox, o.Record.Owner, o.Record.Generation = "", nil, nil, 1
			o.Made = now.Add(-2 * time.Hour)
		}, do: decide.None, waits: decide.ReasonStarting},
	} {
		t.Run(name, func(t *testing.T) {
			r := sandboxed()
			r.Record.Owner = asleep
			o := decide.SandboxEnd{Record: r.Record, Noted: r.Noted, Sandbox: r.Sandbox, Now: now}
			test.change(&o)
			if got := decide.NextSandboxEnd(o); got.Do != test.do || got.Waits != test.waits {
				t.Errorf("next is %+v", got)
			}
		})
	}
}
