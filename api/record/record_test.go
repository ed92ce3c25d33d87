package record

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A Create boots fresh only if no state of the VM sleeps anywhere, as far as records and
// container know. The intent is the record's owner or open wake, never a label or a tag alone. A
// wake without an order is a restore that says so.
func TestDecide(t *testing.T) {
	const a, b = "sha256:aa", "sha256:bb"
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	wake := &nodev1.Operation{Id: "op", Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Destination: "n1", Digest: a,
		Phase: nodev1.Phase_PHASE_TRANSFERRING}
	snapshots := []*nodev1.SnapshotRef{{Digest: a}}
	move := func(phase nodev1.Phase, digest string) *nodev1.Record {
		op := &nodev1.Operation{Id: "op", Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 1, Source: "n2", Destination: "n1",
			Phase: phase, Digest: digest, Repository: "r"}
		return &nodev1.Record{Vm: vm, Owner: &nodev1.Owner{Node: "n2"}, Generation: 7, Operation: op}
	}
	stream := func(generation uint64) Intent {
		return Intent{Operation: "op", Attempt: 1, Stream: &machinev1.Stream{Generation: generation}}
	}
	placed := func(rec *nodev1.Record) *nodev1.Record {
		rec.Operation.ByPlace, rec.Operation.Place = true, "pod"
		return rec
	}
	in := func(i Intent, place string) Intent {
		i.Place = place
		return i
	}
	ordered := Intent{Operation: "op", Attempt: 1, Digest: a}
	waking := placed(&nodev1.Record{Vm: vm, Owner: &nodev1.Owner{Digest: a}, Operation: proto.CloneOf(wake)})
	for name, c := range map[string]struct {
		rec    *nodev1.Record
		intent Intent
		want   Decision
		text   string // of the refusal
	}{
		"no records":          {want: Decision{Action: Boot}},
		"no records, marked":  {intent: Intent{Left: a}, text: a},
		"no records, ordered": {intent: Intent{Digest: a}, text: a},
		"nobody":              {rec: &nodev1.Record{Vm: vm}, want: Decision{Action: Boot}},
		"this node": {rec: &nodev1.Record{Vm: vm, Owner: &nodev1.Owner{Node: "n1"}},
			want: Decision{Action: Boot}},
		"this node, in its place": {rec: &nodev1.Record{Vm: vm, Owner: &nodev1.Owner{Node: "n1"}, Place: "pod"},
			intent: Intent{Place: "pod"}, want: Decision{Action: Boot}},
		"this node, in another place": {rec: &nodev1.Record{Vm: vm, Owner: &nodev1.Owner{Node: "n1"}, Place: "pod"},
			intent: Intent{Place: "other"}, text: "place pod, this is \"other\""},
		"this node, in no place": {rec: &nodev1.Record{Vm: vm, Owner: &nodev1.Owner{Node: "n1"}, Place: "pod"},
			text: "place pod"},
		"this node, nobody wrote the place down": {rec: &nodev1.Record{Vm: vm, Owner: &nodev1.Owner{Node: "n1"}},
			intent: Intent{Place: "pod"}, want: Decision{Action: Boot}},
		"woken in its place":     {rec: waking, intent: in(ordered, "pod"), want: Decision{Action: Restore, Digest: a}},
		"woken in another place": {rec: waking, intent: in(ordered, "other"), text: "brings it to place pod"},
		"woken in no place":      {rec: waking, intent: ordered, text: "brings it to place pod"},
		"received in its place": {rec: placed(move(nodev1.Phase_PHASE_TRANSFERRING, "")), intent: in(stream(7), "pod"),
			want: Decision{Action: Receive, Move: true}},
		"received in another place": {rec: placed(move(nodev1.Phase_PHASE_TRANSFERRING, "")), intent: in(stream(7), "other"),
			text: "brings it to place pod"},
		"another node": {rec: &nodev1.Record{Vm: vm, Owner: &nodev1.Owner{Node: "n2"}}, text: "n2"},
		"a snapshot": {rec: &nodev1.Record{Vm: vm, Owner: &nodev1.Owner{Digest: a}},
			want: Decision{Action: Restore, Digest: a, Lost: true}},
		"another snapshot": {rec: &nodev1.Record{Vm: vm, Owner: &nodev1.Owner{Digest: a}},
			intent: Intent{Digest: b}, text: a},
		"lost": {rec: &nodev1.Record{Vm: vm, Lost: a},
			text: "godwit wake --digest " + a + " --force default/web"},
		"lost, owner still named": {rec: &nodev1.Record{Vm: vm, Lost: a, Owner: &nodev1.Owner{Node: "n1"}},
			text: "godwit rm --force default/web"},
		"lost at another node": {rec: &nodev1.Record{Vm: vm, Kept: &nodev1.Kept{Node: "n1", Destination: "n2"},
			Owner: &nodev1.Owner{Node: "n2"}}, text: "godwit recover --from-source default/web"},
		"lost, woken by force": {rec: &nodev1.Record{Vm: vm, Lost: a, Operation: wake},
			intent: Intent{Operation: "op", Attempt: 1, Digest: a, Left: a}, want: Decision{Action: Restore, Digest: a}},
		"marked, empty records": {rec: &nodev1.Record{Vm: vm}, intent: Intent{Left: a}, text: a},
		"marked, a snapshot owns": {rec: &nodev1.Record{Vm: vm, Owner: &nodev1.Owner{Digest: b}}, intent: Intent{Left: a},
			want: Decision{Action: Restore, Digest: b, Lost: true}},
		"marked, used up since": {rec: &nodev1.Record{Vm: vm, Spent: []string{a}}, intent: Intent{Left: a},
			want: Decision{Action: Boot}},
		"marked, listed": {rec: &nodev1.Record{Vm: vm, Snapshots: snapshots}, intent: Intent{Left: a},
			want: Decision{Action: Boot}},
		"a live move": {rec: move(nodev1.Phase_PHASE_PREPARING, ""), intent: stream(7),
			want: Decision{Action: Receive, Move: true}},
		"a live move, stale":     {rec: move(nodev1.Phase_PHASE_PREPARING, ""), intent: stream(6), text: "owner number 6"},
		"a live move, committed": {rec: move(nodev1.Phase_PHASE_COMMITTED, ""), intent: stream(7), text: "op"},
		"a live move, over": {rec: &nodev1.Record{Vm: vm, Owner: &nodev1.Owner{Node: "n1"}, Generation: 8},
			intent: stream(7), text: "operation op"},
		"a live move, no records":   {intent: stream(7), text: "operation op"},
		"a move, ordered by nobody": {rec: move(nodev1.Phase_PHASE_PREPARING, ""), text: "op"},
		"a cold move": {rec: move(nodev1.Phase_PHASE_SWITCHING, a), intent: Intent{Operation: "op", Attempt: 1,
			Digest: a}, want: Decision{Action: Restore, Digest: a, Repository: "r", Move: true}},
		"a cold move, another one": {rec: move(nodev1.Phase_PHASE_SWITCHING, a), intent: Intent{Operation: "op", Attempt: 1,
			Digest: b}, text: "op"},
		"marked with one of another": {rec: &nodev1.Record{Vm: vm, Snapshots: snapshots, Spent: []string{a}},
			intent: Intent{Left: b}, text: b},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Decide(c.rec, "n1", c.intent)
			if c.text != "" {
				if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), c.text) || got.Action != Refuse {
					t.Fatalf("%v, %v; want a refusal that names %s", got, err, c.text)
				}
				return
			}
			if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
				t.Errorf("%v, (-want +got):\n%s", err, diff)
			}
		})
	}
}
