package transition_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

var update = flag.Bool("update", false, "write the tables of docs/dev/protocols/records.md")

var now = time.Unix(1700000000, 0)

var vm = &nodev1.VM{Namespace: "default", Id: "web"}

const (
	digest = "sha256:aa"
	gen    = 7
)

// call is one of the service, made with the right names.
type call struct {
	name string
	do   func(transition.State) (transition.Change, error)
}

var outside = []call{
	{"Ensure", func(s transition.State) (transition.Change, error) {
		return transition.Ensure(s, &nodev1.EnsureRequest{Vm: vm}, "uid")
	}},
	{"Own n1", func(s transition.State) (transition.Change, error) {
		return transition.Own(s, &nodev1.OwnRequest{Vm: vm, Node: "n1", Generation: gen})
	}},
	{"Disown n1", func(s transition.State) (transition.Change, error) {
		return transition.EndOwnership(s, &nodev1.DisownRequest{Vm: vm, Node: "n1", Generation: gen})
	}},
	{"Open hibernate n1", open(nodev1.Kind_KIND_HIBERNATE)},
	{"Open checkpoint n1", open(nodev1.Kind_KIND_CHECKPOINT)},
	{"Open wake n2", open(nodev1.Kind_KIND_WAKE)},
	{"Open wake n2 force", func(s transition.State) (transition.Change, error) {
		op := operation(nodev1.Kind_KIND_WAKE, 0)
		op.Id = "new"
		return transition.Open(s, &nodev1.OpenRequest{Vm: vm, Operation: op, ForceDigest: digest}, now)
	}},
	{"Open wake n2 force, n1 lost", func(s transition.State) (transition.Change, error) {
		op := operation(nodev1.Kind_KIND_WAKE, 0)
		op.Id = "new"
		return transition.Open(s, &nodev1.OpenRequest{Vm: vm, Operation: op, ForceDigest: digest, LostNode: "n1"}, now)
	}},
	{"Open wake n3 force, n2 lost", func(s transition.State) (transition.Change, error) {
		op := operation(nodev1.Kind_KIND_WAKE, 0)
		op.Id, op.Destination = "new", "n3"
		return transition.Open(s, &nodev1.OpenRequest{Vm: vm, Operation: op, ForceDigest: digest, LostNode: "n2"}, now)
	}},
	{"Open migrate n1 n2", open(nodev1.Kind_KIND_MIGRATE)},
	{"Remove", func(s transition.State) (transition.Change, error) {
		return transition.Remove(s, &nodev1.RemoveRequest{Vm: vm}, now)
	}},
	{"Remove force", func(s transition.State) (transition.Change, error) {
		return transition.Remove(s, &nodev1.RemoveRequest{Vm: vm, Force: true}, now)
	}},
}

func open(kind nodev1.Kind) func(transition.State) (transition.Change, error) {
	return func(s transition.State) (transition.Change, error) {
		op := operation(kind, 0)
		op.Id, op.Digest = "new", ""
		return transition.Open(s, &nodev1.OpenRequest{Vm: vm, Operation: op}, now)
	}
}

func operation(kind nodev1.Kind, phase nodev1.Phase) *nodev1.Operation {
	op := &nodev1.Operation{Id: "op", Vm: vm, Kind: kind, Attempt: 2, Phase: phase, Generation: gen, Repository: "r",
		Tag: "t", Digest: digest}
	if kind != nodev1.Kind_KIND_WAKE {
		op.Source = "n1"
	}
	if kind != nodev1.Kind_KIND_HIBERNATE && kind != nodev1.Kind_KIND_CHECKPOINT {
		op.Destination = "n2"
	}
	return op
}

// advances and finishes are the calls about an operation, by phase.
var (
	advances = []nodev1.Phase{nodev1.Phase_PHASE_PREPARING, nodev1.Phase_PHASE_TRANSFERRING, nodev1.Phase_PHASE_SWITCHING,
		nodev1.Phase_PHASE_CLEANING, nodev1.Phase_PHASE_ABORTING, nodev1.Phase_PHASE_REVERTING}
	finishes = []nodev1.Phase{nodev1.Phase_PHASE_SUCCEEDED, nodev1.Phase_PHASE_FAILED, nodev1.Phase_PHASE_ABORTED,
		nodev1.Phase_PHASE_LOST_AT_DEST, nodev1.Phase_PHASE_LOST_AT_SRC}
)

// ref is how a call names the operation.
type ref struct {
	id         string
	attempt    uint32
	generation uint64
}

var right = ref{"op", 2, gen}

func inside(kind nodev1.Kind, r ref) []call {
	var calls []call
	for _, phase := range advances {
		calls = append(calls, call{"Advance " + short(phase), func(s transition.State) (transition.Change, error) {
			return transition.Advance(s, &nodev1.AdvanceRequest{Vm: vm, Operation: r.id, Attempt: r.attempt,
				Generation: r.generation, Phase: phase}, now)
		}})
	}
	calls = append(calls, call{"Commit", func(s transition.State) (transition.Change, error) {
		receipt := record.Receipt{Operation: "op", Attempt: 2, Generation: gen, Digest: digest, Stopped: true}
		return transition.Commit(s, &nodev1.CommitRequest{Vm: vm, Operation: r.id, Attempt: r.attempt,
			Generation: r.generation, Owner: ownerAfter(kind), Receipt: receipt.String()}, now)
	}})
	for _, phase := range finishes {
		calls = append(calls, call{"Finish " + short(phase), func(s transition.State) (transition.Change, error) {
			return transition.Finish(s, &nodev1.FinishRequest{Vm: vm, Operation: r.id, Attempt: r.attempt,
				Generation: r.generation, Phase: phase}, now)
		}})
	}
	return calls
}

func ownerBefore(kind nodev1.Kind) *nodev1.Owner {
	if kind == nodev1.Kind_KIND_WAKE {
		return &nodev1.Owner{Digest: digest}
	}
	return &nodev1.Owner{Node: "n1"}
}

func ownerAfter(kind nodev1.Kind) *nodev1.Owner {
	if kind == nodev1.Kind_KIND_CHECKPOINT {
		return ownerBefore(kind)
	}
	if kind == nodev1.Kind_KIND_HIBERNATE {
		return &nodev1.Owner{Digest: digest}
	}
	return &nodev1.Owner{Node: "n2"}
}

// under is a record with an operation in a phase, open or settled.
func under(kind nodev1.Kind, phase nodev1.Phase) transition.State {
	rec := &nodev1.Record{Vm: vm, Uid: "uid", Version: 3, Generation: gen, Owner: ownerBefore(kind), Repository: "r"}
	op := operation(kind, phase)
	switch {
	case kind == nodev1.Kind_KIND_CHECKPOINT:
	case transition.Committed(phase):
		rec.Owner, rec.Generation = ownerAfter(kind), gen+1
	case phase == nodev1.Phase_PHASE_REVERTING, phase == nodev1.Phase_PHASE_LOST_AT_SRC:
		rec.Generation = gen + 2
	}
	if !transition.Settled(phase) {
		rec.Operation = op
	}
	return transition.State{Record: rec, Named: op}
}

func atRest() (names []string, states map[string]transition.State) {
	rec := func(owner *nodev1.Owner) transition.State {
		return transition.State{Record: &nodev1.Record{Vm: vm, Uid: "uid", Version: 3, Generation: gen, Owner: owner}}
	}
	held := under(nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_PENDING)
	done := under(nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_COMMITTED)
	done.Record.Generation = gen
	held.Named, done.Named = nil, nil // the calls of this table name no operation, or a new one
	lost, lostAt := rec(nil), rec(&nodev1.Owner{Node: "n1"})
	lost.Record.Lost, lostAt.Record.Lost = digest, digest
	waking, given := under(nodev1.Kind_KIND_WAKE, nodev1.Phase_PHASE_TRANSFERRING),
		under(nodev1.Kind_KIND_WAKE, nodev1.Phase_PHASE_TRANSFERRING)
	waking.Named, given.Named = nil, nil
	// n1 was called lost
	given.Record.Owner, given.Record.Snapshots = &nodev1.Owner{Node: "n1"}, []*nodev1.SnapshotRef{{Digest: digest}}
	return []string{"absent", "no owner", "no owner, lost", "node n1", "node n1, lost", "node n2", "digest",
			"operation open",
			"hibernate of n1 committed", "wake to n2 open", "wake of n1's to n2 open"}, map[string]transition.State{
			"absent": {}, "no owner": rec(nil), "node n1": rec(&nodev1.Owner{Node: "n1"}),
			"node n2": rec(&nodev1.Owner{Node: "n2"}),
			"digest":  rec(&nodev1.Owner{Digest: digest}), "operation open": held,
			"no owner, lost": lost, "node n1, lost": lostAt, "hibernate of n1 committed": done,
			"wake to n2 open": waking, "wake of n1's to n2 open": given,
		}
}

func short(p nodev1.Phase) string {
	words := strings.Split(strings.ToLower(strings.TrimPrefix(p.String(), "PHASE_")), "_")
	for i, w := range words {
		words[i] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}

// outcome of a call as the tables write it.
func outcome(t *testing.T, s transition.State, c call) string {
	t.Helper()
	before := proto.CloneOf(s.Record)
	change, err := c.do(s)
	if !proto.Equal(before, s.Record) {
		t.Errorf("%s: the state given was changed", c.name)
	}
	switch {
	case errdefs.IsNotFound(err):
		return "NotFound"
	case errdefs.IsFailedPrecondition(err):
		return "-"
	case errdefs.IsAborted(err):
		return "over"
	case err != nil:
		return err.Error()
	case change.Record == s.Record:
		return "same"
	case change.Record == nil:
		return "absent"
	}
	checkChange(t, c.name, s.Record, change)
	owner := ""
	if !proto.Equal(change.Record.GetOwner(), s.Record.GetOwner()) {
		owner = " = " + ownerName(change.Record.GetOwner())
	}
	switch op := change.Record.GetOperation(); {
	case op != nil:
		return short(op.GetPhase()) + owner
	case change.Closed != nil:
		return short(change.Closed.GetPhase()) + owner
	default:
		return strings.TrimPrefix(ownerName(change.Record.GetOwner()), " = ")
	}
}

func ownerName(o *nodev1.Owner) string {
	switch {
	case o.GetNode() != "":
		return "node " + o.GetNode()
	case o.GetDigest() != "":
		return "digest"
	default:
		return "no owner"
	}
}

// checkChange wants the generation to grow by one exactly with a new owner, or with a
// new boot at the same one.
func checkChange(t *testing.T, name string, before *nodev1.Record, change transition.Change) {
	t.Helper()
	want := before.GetGeneration()
	if before != nil && (!proto.Equal(before.GetOwner(), change.Record.GetOwner()) || strings.HasPrefix(name, "Own ")) {
		want++
	}
	if change.Record.GetGeneration() != want {
		t.Errorf("%s: generation %d, want %d", name, change.Record.GetGeneration(), want)
	}
}

func table(t *testing.T, rows []string, states map[string]transition.State, calls []call) string {
	var b strings.Builder
	b.WriteString("| |")
	for _, c := range calls {
		b.WriteString(" " + c.name + " |")
	}
	b.WriteString("\n|" + strings.Repeat("---|", len(calls)+1) + "\n")
	for _, row := range rows {
		b.WriteString("| " + row + " |")
		for _, c := range calls {
			b.WriteString(" " + outcome(t, states[row], c) + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func tables(t *testing.T) map[string]string {
	rows, states := atRest()
	all := map[string]string{"owner": table(t, rows, states, outside)}
	for name, kind := range map[string]nodev1.Kind{"hibernate": nodev1.Kind_KIND_HIBERNATE, "wake": nodev1.Kind_KIND_WAKE,
		"migrate": nodev1.Kind_KIND_MIGRATE, "checkpoint": nodev1.Kind_KIND_CHECKPOINT} {
		var rows []string
		states := map[string]transition.State{}
		for p := nodev1.Phase_PHASE_PENDING; p <= nodev1.Phase_PHASE_LOST_AT_SRC; p++ {
			rows = append(rows, short(p))
			states[short(p)] = under(kind, p)
		}
		all[name] = table(t, rows, states, inside(kind, right))
	}
	rows, states = unplaced()
	all["place"] = table(t, rows, states, placing)
	return all
}

// TestTablesAreTheDocumented runs every call in every state.
func TestTablesAreTheDocumented(t *testing.T) {
	path := "../../docs/dev/protocols/records.md"
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(doc)
	for name, want := range tables(t) {
		begin, end := fmt.Sprintf("<!-- table %s -->\n", name), fmt.Sprintf("<!-- end %s -->", name)
		head, rest, ok := strings.Cut(text, begin)
		got, tail, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Errorf("%s has no table %s", path, name)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" && !*update {
			t.Errorf("table %s: code and document differ (-code +document):\n%s", name, diff)
		}
		text = head + begin + want + end + tail
	}
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStaleCallsTouchNothing makes every call about an operation in every phase with a
// wrong name (R10).
func TestStaleCallsTouchNothing(t *testing.T) {
	tests := []struct {
		name string
		ref  ref
		want error
	}{
		{"another operation", ref{"other", 2, gen}, errdefs.ErrInvalidArgument},
		{"an older attempt", ref{"op", 1, gen}, errdefs.ErrAborted},
		{"another generation", ref{"op", 2, gen - 1}, errdefs.ErrFailedPrecondition},
		{"the generation after", ref{"op", 2, gen + 1}, errdefs.ErrFailedPrecondition},
	}
	for _, kind := range []nodev1.Kind{nodev1.Kind_KIND_HIBERNATE, nodev1.Kind_KIND_WAKE, nodev1.Kind_KIND_MIGRATE,
		nodev1.Kind_KIND_CHECKPOINT} {
		for phase := nodev1.Phase_PHASE_PENDING; phase <= nodev1.Phase_PHASE_LOST_AT_SRC; phase++ {
			for _, tt := range tests {
				s := under(kind, phase)
				if tt.ref.id != "op" {
					s.Named = nil
				}
				for _, c := range inside(kind, tt.ref) {
					if change, err := c.do(s); !errors.Is(err, tt.want) || change.Record != nil {
						t.Errorf("%s in %s, %s: %v, %v; want %v", kind, short(phase), c.name, change.Record, err, tt.want)
					}
				}
			}
		}
	}
}
