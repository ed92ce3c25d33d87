package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// deletes is a daemon that answers an order with the first of its records, and each look with
// the next. The deletion of each that has one is the order's.
type deletes struct {
	nodev1.NodeService
	says []*nodev1.Record
	id   string
	asks *nodev1.DeleteRequest
}

func (d *deletes) next() (*nodev1.Record, error) {
	if len(d.says) == 0 {
		return nil, record.ToWire(errdefs.ErrPermissionDenied)
	}
	rec := proto.CloneOf(d.says[0])
	if d.says = d.says[1:]; rec == nil {
		return nil, record.ToWire(errdefs.ErrUnavailable)
	}
	rec.Vm = &nodev1.VM{Namespace: "n", Id: "v"}
	if rec.Deletion != nil && rec.Deletion.Id == "" {
		rec.Deletion.Id = d.id
	}
	return rec, nil
}

func (d *deletes) Delete(_ context.Context, req *nodev1.DeleteRequest) (*nodev1.Record, error) {
	d.asks, d.id = req, req.GetDeletion().GetId()
	return d.next()
}

func (d *deletes) Recorded(context.Context, *nodev1.GetRequest) (*nodev1.Record, error) {
	return d.next()
}

// An order is followed to its end: each try that fails is told once, what there is of the
// VM at last, and why it stays.
func TestFinalSnapshotIsFollowed(t *testing.T) {
	here := &nodev1.Owner{Node: "a"}
	ordered := &nodev1.Record{Owner: here, Deletion: &nodev1.Deletion{}}
	away := &nodev1.Record{Owner: here, Deletion: &nodev1.Deletion{Tries: 1, Reason: "the registry is away",
		Class: "unavailable"}}
	stuck := &nodev1.Record{Owner: here, Deletion: &nodev1.Deletion{Tries: 2, Reason: "it is bad: data loss",
		Class: "data loss"}}
	unnamed := &nodev1.Record{Owner: here, Deletion: &nodev1.Deletion{Tries: 1, Reason: "strange"}}
	done := &nodev1.Record{Owner: &nodev1.Owner{Digest: "sha256:1"}}
	for name, c := range map[string]struct {
		says           []*nodev1.Record
		detach         bool
		out, log, fail string
		exit           int
	}{
		"done": {says: []*nodev1.Record{ordered, ordered, done},
			out: "n/v removed; its last state is sha256:1: godwit wake n/v has it back, godwit rm --force n/v gives it up\n"},
		"done behind a failure": {says: []*nodev1.Record{ordered, away, away, done}, out: "n/v removed",
			log: "try 1: the registry is away"},
		"detached":             {says: []*nodev1.Record{ordered}, detach: true, out: "n/v: to be removed"},
		"for good":             {says: []*nodev1.Record{ordered, stuck}, fail: "it is bad; the VM stays", exit: 9},
		"for a reason unnamed": {says: []*nodev1.Record{unnamed}, fail: "strange; the VM stays", exit: 1},
		"called off":           {says: []*nodev1.Record{ordered, {Owner: here}}, fail: "node a has the VM", exit: 5},
		"its task deleted":     {says: []*nodev1.Record{ordered, {}}, fail: "its task was deleted", exit: 5},
		"another order": {says: []*nodev1.Record{ordered, {Owner: here, Deletion: &nodev1.Deletion{Id: "other"}}},
			fail: "another order", exit: 5},
		"godwitd started again": {says: []*nodev1.Record{ordered, nil, ordered, done}, out: "n/v removed",
			log: "godwit: waiting for godwitd, and going on then"},
		"not allowed any more": {says: []*nodev1.Record{ordered}, fail: "follow the deletion of VM n/v", exit: 7},
	} {
		var out, log bytes.Buffer
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		cmd.SetErr(&log)
		cmd.SetContext(t.Context())
		d := &deletes{says: c.says}
		err := (&finalOrder{final: true, endExecs: true, detach: c.detach}).order(cmd, &options{}, d,
			&nodev1.VM{Namespace: "n", Id: "v"})
		if c.fail != "" {
			if _, exit := classify(err); exit != c.exit || err == nil || !strings.Contains(err.Error(), c.fail) {
				t.Errorf("%s: %v, exit code %d", name, err, exit)
			}
			continue
		}
		if err != nil || !strings.HasPrefix(out.String(), c.out) ||
			strings.Count(log.String(), "try 1") != strings.Count(c.log, "try 1") || !strings.Contains(log.String(), c.log) {
			t.Errorf("%s: %v, %q, %q", name, err, out.String(), log.String())
		}
		if !d.asks.GetDeletion().GetEndExecs() || d.id == "" {
			t.Errorf("%s: ordered was %v", name, d.asks)
		}
	}
}

// Interrupted, the command says that the order stands, and what ends it.
func TestFinalSnapshotAfterItsCommandEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cmd := &cobra.Command{}
	cmd.SetContext(ctx)
	cmd.SetErr(&bytes.Buffer{})
	d := &deletes{says: []*nodev1.Record{{Deletion: &nodev1.Deletion{}}}}
	err := (&finalOrder{}).order(cmd, &options{}, d, &nodev1.VM{Namespace: "n", Id: "v"})
	if _, exit := classify(err); exit != 130 || !strings.Contains(err.Error(), "godwit rm --cancel") {
		t.Errorf("%v, exit code %d", err, exit)
	}
}

func TestDeletionIsCalledOff(t *testing.T) {
	for output, says := range map[string]string{"text": "n/v: no deletion is ordered any more", "json": "{"} {
		var out bytes.Buffer
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		cmd.SetContext(t.Context())
		d := &deletes{says: []*nodev1.Record{{}}}
		err := callOff(cmd, &options{output: output}, d, &nodev1.VM{Namespace: "n", Id: "v"})
		if err != nil || !d.asks.GetCancel() || !strings.HasPrefix(out.String(), says) || output == "json" &&
			!json.Valid(out.Bytes()) {
			t.Errorf("%s: %v, %q", output, err, out.String())
		}
	}
}

// godwit ps says where a deletion stands, and next to the table what it waits for.
func TestDeletionInPs(t *testing.T) {
	for _, c := range []struct {
		d           *nodev1.Deletion
		status, log string
	}{
		{nil, "running", ""},
		{&nodev1.Deletion{Id: "d"}, "running, to be removed", ""},
		{&nodev1.Deletion{Id: "d", Tries: 2, Reason: "away", Class: "unavailable"},
			"running, to be removed (failed tries: 2)", "godwit rm --cancel n/v calls it off); try 2: away"},
		{&nodev1.Deletion{Id: "d", Tries: 1, Reason: "bad", Class: "data loss"}, "running, not removed",
			"has failed for good: bad"},
	} {
		var log bytes.Buffer
		vm := &nodev1.VMInfo{Vm: &nodev1.VM{Namespace: "n", Id: "v"}, Status: "running", Deletion: c.d}
		sayNote(&log, vm)
		if got := stateText(vm); got != c.status || !strings.Contains(log.String(), c.log) ||
			(c.log == "") != (log.Len() == 0) {
			t.Errorf("%v: %q, %q", c.d, got, log.String())
		}
	}
}
