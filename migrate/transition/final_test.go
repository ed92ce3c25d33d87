package transition_test

import (
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// toDelete is a VM of n1 whose deletion d is ordered; phase is that of its open try, if any.
func toDelete(phase nodev1.Phase) *nodev1.Record {
	rec := &nodev1.Record{Vm: vm, Uid: "u", Generation: gen, Owner: &nodev1.Owner{Node: "n1"},
		Deletion: &nodev1.Deletion{Id: "d", Tries: 2, Class: errdefs.ErrUnavailable.Error()}}
	if phase != 0 {
		rec.Operation = operation(nodev1.Kind_KIND_HIBERNATE, phase)
		rec.Operation.Deletion = "d"
	}
	if transition.Committed(phase) {
		rec.Owner = &nodev1.Owner{Digest: digest}
	}
	return rec
}

// Who may order it, when it is too late to call it off, and that one write does that.
func TestDelete(t *testing.T) {
	order := func(id string) *nodev1.DeleteRequest {
		return &nodev1.DeleteRequest{Vm: vm, Deletion: &nodev1.Deletion{Id: id, EndExecs: true}}
	}
	off := &nodev1.DeleteRequest{Vm: vm, Cancel: true}
	asleep, lost, plain := toDelete(0), toDelete(0), toDelete(0)
	asleep.Owner, lost.Lost, plain.Deletion = &nodev1.Owner{Digest: digest}, digest, nil
	for name, c := range map[string]struct {
		rec  *nodev1.Record
		req  *nodev1.DeleteRequest
		fail func(error) bool
		want string // id that stands after it
	}{
		"no record":      {nil, order("d"), errdefs.IsNotFound, ""},
		"ordered":        {plain, order("d"), nil, "d"},
		"said once more": {toDelete(0), order("d"), nil, "d"},
		"another order":  {toDelete(0), order("e"), nil, "e"},
		"no id":          {plain, order(""), errdefs.IsInvalidArgument, ""},
		"a bad id":       {plain, order("a b"), errdefs.IsInvalidArgument, ""},
		"of another VM": {plain, &nodev1.DeleteRequest{Vm: vm, Uid: "other", Deletion: &nodev1.Deletion{Id: "d"}},
			errdefs.IsFailedPrecondition, ""},
		"asleep":           {asleep, order("e"), errdefs.IsFailedPrecondition, ""},
		"lost":             {lost, order("e"), errdefs.IsFailedPrecondition, ""},
		"called off":       {toDelete(0), off, nil, ""},
		"off, in a try":    {toDelete(nodev1.Phase_PHASE_SWITCHING), off, nil, ""},
		"off, in its undo": {toDelete(nodev1.Phase_PHASE_ABORTING), off, nil, ""},
		"off, committed":   {toDelete(nodev1.Phase_PHASE_COMMITTED), off, errdefs.IsFailedPrecondition, ""},
		"off, nothing is":  {plain, off, nil, ""},
		"failed unopened": {toDelete(0), &nodev1.DeleteRequest{Vm: vm, Deletion: &nodev1.Deletion{Id: "d", Reason: "r",
			Class: "c"}}, nil, "d"},
		"opened after all": {toDelete(nodev1.Phase_PHASE_ABORTING),
			&nodev1.DeleteRequest{Vm: vm, Deletion: &nodev1.Deletion{Id: "d", Reason: "r"}}, nil, "d"},
		"failed, off since": {toDelete(0), &nodev1.DeleteRequest{Vm: vm, Deletion: &nodev1.Deletion{Id: "e", Reason: "r"}},
			nil, "d"},
	} {
		before := proto.CloneOf(c.rec)
		change, err := transition.Delete(transition.State{Record: c.rec}, c.req, now)
		if !proto.Equal(before, c.rec) {
			t.Errorf("%s: the state was changed", name)
		}
		if c.fail != nil {
			if !c.fail(err) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		rec := change.Record
		if err != nil || rec.GetDeletion().GetId() != c.want || rec.GetGeneration() != gen {
			t.Errorf("%s: %v, %v", name, rec, err)
		}
		if op := rec.GetOperation(); op != nil && (op.GetPhase() != nodev1.Phase_PHASE_ABORTING ||
			op.GetCancelled() != (before.GetOperation().GetPhase() != nodev1.Phase_PHASE_ABORTING)) {
			t.Errorf("%s: its try: %v", name, op)
		}
		if tries := rec.GetDeletion().GetTries(); name == "another order" && tries != 0 || name == "failed unopened" &&
			tries != 3 || name == "opened after all" && tries != 2 {
			t.Errorf("%s: %v", name, rec.GetDeletion())
		}
	}
}

// What becomes of the order with what becomes of its VM, and of its try.
func TestDeletionEnds(t *testing.T) {
	finish := func(from, to nodev1.Phase, edit func(*nodev1.Record)) func() (transition.Change, error) {
		return func() (transition.Change, error) {
			rec := toDelete(from)
			if edit != nil {
				edit(rec)
			}
			req := &nodev1.FinishRequest{Vm: vm, Operation: "op", Attempt: 2, Generation: gen, Phase: to, Reason: "r"}
			return transition.Finish(transition.State{Record: rec, Named: rec.Operation}, req, now)
		}
	}
	aborting, failed := nodev1.Phase_PHASE_ABORTING, nodev1.Phase_PHASE_FAILED
	open := func(op *nodev1.Operation) func() (transition.Change, error) {
		return func() (transition.Change, error) {
			return transition.Open(transition.State{Record: toDelete(0)}, &nodev1.OpenRequest{Vm: vm, Operation: op}, now)
		}
	}
	try := operation(nodev1.Kind_KIND_HIBERNATE, 0)
	try.Digest, try.Deletion = "", "d"
	late := proto.CloneOf(try)
	late.Deletion = "off"
	for name, c := range map[string]struct {
		do    func() (transition.Change, error)
		tries uint32 // 0: the order is over
		fail  func(error) bool
	}{
		"succeeded":        {do: finish(nodev1.Phase_PHASE_CLEANING, nodev1.Phase_PHASE_SUCCEEDED, nil)},
		"aborted by order": {do: finish(aborting, nodev1.Phase_PHASE_ABORTED, nil)},
		"failed":           {do: finish(aborting, failed, nil), tries: 3},
		"failed, other order": {do: finish(aborting, failed, func(r *nodev1.Record) {
			r.Operation.Deletion = "before"
		}), tries: 2},
		"failed by hand":     {do: finish(aborting, failed, func(r *nodev1.Record) { r.Operation.Deletion = "" }), tries: 2},
		"failed, called off": {do: finish(aborting, failed, func(r *nodev1.Record) { r.Deletion = nil })},
		"a try":              {do: open(try), tries: 2},
		"a try, too late":    {do: open(late), fail: errdefs.IsFailedPrecondition},
		"a new task": {do: func() (transition.Change, error) {
			return transition.Own(transition.State{Record: toDelete(0)}, &nodev1.OwnRequest{Vm: vm, Node: "n1", Generation: gen})
		}},
		"its task was deleted": {do: func() (transition.Change, error) {
			return transition.EndOwnership(transition.State{Record: toDelete(0)}, &nodev1.DisownRequest{Vm: vm, Node: "n1",
				Generation: gen})
		}},
		"a wake overtakes": {do: func() (transition.Change, error) {
			wake := operation(nodev1.Kind_KIND_WAKE, 0)
			wake.Id = "new"
			return transition.Open(transition.State{Record: toDelete(nodev1.Phase_PHASE_CLEANING)},
				&nodev1.OpenRequest{Vm: vm, Operation: wake}, now)
		}},
		"a hibernate by hand is it": {tries: 2, do: func() (transition.Change, error) {
			rec := toDelete(nodev1.Phase_PHASE_SWITCHING)
			rec.Operation.Deletion = ""
			receipt := record.Receipt{Operation: "op", Attempt: 2, Generation: gen, Digest: digest, Stopped: true}
			c, err := transition.Commit(transition.State{Record: rec, Named: rec.Operation}, &nodev1.CommitRequest{
				Vm: vm, Operation: "op", Attempt: 2, Generation: gen, Owner: &nodev1.Owner{Digest: digest},
				Receipt: receipt.String(),
			}, now)
			if c.Record.GetOperation().GetDeletion() != "d" {
				t.Errorf("its remains would stay: %v", c.Record)
			}
			return c, err
		}},
		"a hibernate by hand after it failed for good": {do: func() (transition.Change, error) {
			rec := toDelete(nodev1.Phase_PHASE_SWITCHING)
			rec.Operation.Deletion, rec.Deletion.Class = "", errdefs.ErrDataLoss.Error()
			receipt := record.Receipt{Operation: "op", Attempt: 2, Generation: gen, Digest: digest, Stopped: true}
			c, err := transition.Commit(transition.State{Record: rec, Named: rec.Operation}, &nodev1.CommitRequest{
				Vm: vm, Operation: "op", Attempt: 2, Generation: gen, Owner: &nodev1.Owner{Digest: digest},
				Receipt: receipt.String(),
			}, now)
			if c.Record.GetOperation().GetDeletion() != "" {
				t.Errorf("a VM that was to stay goes: %v", c.Record)
			}
			return c, err
		}},
		"a wake": {do: func() (transition.Change, error) {
			rec := toDelete(0)
			rec.Operation = operation(nodev1.Kind_KIND_WAKE, nodev1.Phase_PHASE_SWITCHING)
			rec.Owner = &nodev1.Owner{Digest: digest}
			return transition.Commit(transition.State{Record: rec, Named: rec.Operation},
				&nodev1.CommitRequest{Vm: vm, Operation: "op", Attempt: 2, Generation: gen, Owner: &nodev1.Owner{Node: "n2"}}, now)
		}},
	} {
		change, err := c.do()
		if c.fail != nil {
			if !c.fail(err) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if d := change.Record.GetDeletion(); err != nil || d.GetTries() != c.tries || c.tries == 3 &&
			(d.GetReason() != "r" || d.GetOperation() != "op" || d.GetTriedUnixNano() != now.UnixNano()) {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
}
