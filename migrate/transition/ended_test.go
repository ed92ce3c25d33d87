package transition_test

import (
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// left is the record of a VM that woke from a snapshot, took a checkpoint and has ended.
func left(edit func(*nodev1.Record)) transition.State {
	rec := &nodev1.Record{
		Vm: vm, Uid: "u", Generation: gen, Spent: []string{digest, "sha256:point"}, Ended: &nodev1.Ended{Generation: gen,
			Node: "n1"},
		Snapshots: []*nodev1.SnapshotRef{
			{Digest: digest, Repository: "r/u", Tag: "g5-b"}, {Digest: "sha256:point", Checkpoint: true},
			{Digest: "sha256:unspent"},
		},
	}
	if edit != nil {
		edit(rec)
	}
	return transition.State{Record: rec}
}

// What a wake has used up goes only of a VM without an owner, once it was found so for as long as is asked. A
// checkpoint and a snapshot that nothing has used up stay.
func TestTrimSpent(t *testing.T) {
	since := func(ago time.Duration) func(*nodev1.Record) {
		return func(r *nodev1.Record) { r.Ended.SinceUnixNano = now.Add(-ago).UnixNano() }
	}
	and := func(edits ...func(*nodev1.Record)) func(*nodev1.Record) {
		return func(r *nodev1.Record) {
			for _, edit := range edits {
				edit(r)
			}
		}
	}
	old := since(2 * time.Hour)
	for name, c := range map[string]struct {
		edit   func(*nodev1.Record)
		digest string
		bound  time.Duration
		refuse string // empty: it goes
	}{
		"in time":         {old, digest, time.Hour, ""},
		"early":           {since(59 * time.Minute), digest, time.Hour, "kept for 1h"},
		"clock went back": {since(-time.Hour), digest, time.Hour, "kept for 1h"},
		"no bound":        {old, digest, 0, "not said"},
		"checkpoint":      {old, "sha256:point", time.Hour, "none that a VM"},
		"unspent":         {old, "sha256:unspent", time.Hour, "none that a VM"},
		"unknown":         {old, "sha256:x", time.Hour, "none that a VM"},
		"runs": {and(old, func(r *nodev1.Record) {
			r.Owner = &nodev1.Owner{Node: "n1"}
		}), digest, time.Hour, "none that a VM"},
		"sleeps": {and(old, func(r *nodev1.Record) {
			r.Owner = &nodev1.Owner{Digest: "sha256:unspent"}
		}), digest, time.Hour, "none that a VM"},
		"lost": {and(old, func(r *nodev1.Record) { r.Lost = digest }), digest, time.Hour, "none that a VM"},
		"wakes": {and(old, func(r *nodev1.Record) {
			r.Operation = &nodev1.Operation{Id: "o"}
		}), digest, time.Hour, "none that a VM"},
	} {
		got, err := transition.Trim(left(c.edit), &nodev1.TrimRequest{Vm: vm, Spent: c.digest,
			EndedMs: c.bound.Milliseconds(), Payer: "n2"}, now)
		if c.refuse != "" {
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), c.refuse) || got.Record != nil ||
				got.PendingDeletions != nil {
				t.Errorf("%s: %v, %v", name, got, err)
			}
			continue
		}
		if err != nil || len(got.Record.GetSnapshots()) != 2 || len(got.PendingDeletions) != 1 ||
			got.PendingDeletions[0].GetSnapshot().GetDigest() != digest || got.PendingDeletions[0].GetPayer() != "n2" {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// The time counts from when the end was first found, also of a VM that ended before records said so. An end that
// another generation has had does not count.
func TestEndIsNotedOnce(t *testing.T) {
	for name, edit := range map[string]func(*nodev1.Record){
		"by its owner":       func(*nodev1.Record) {},
		"before the upgrade": func(r *nodev1.Record) { r.Ended = nil },
		"of a VM before": func(r *nodev1.Record) {
			r.Ended = &nodev1.Ended{Generation: gen - 2, Node: "n2", SinceUnixNano: now.Add(-time.Hour).UnixNano()}
		},
	} {
		req := &nodev1.TrimRequest{Vm: vm, Spent: digest, EndedMs: time.Minute.Milliseconds()}
		c, err := transition.Trim(left(edit), req, now)
		if err != nil || len(c.PendingDeletions) != 0 || c.Record.GetEnded().GetSinceUnixNano() != now.UnixNano() ||
			c.Record.GetEnded().GetGeneration() != gen || len(c.Record.GetSnapshots()) != 3 {
			t.Fatalf("%s: %v, %v", name, c, err)
		}
		if node := c.Record.GetEnded().GetNode(); (node == "n1") != (name == "by its owner") {
			t.Errorf("%s: it ended at %q", name, node)
		}
		c, err = transition.Trim(transition.State{Record: c.Record}, req, now.Add(time.Minute))
		if err != nil || len(c.PendingDeletions) != 1 {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
	owned := &nodev1.Record{Vm: vm, Uid: "u", Generation: gen, Owner: &nodev1.Owner{Node: "n1"}}
	c, err := transition.EndOwnership(transition.State{Record: owned}, &nodev1.DisownRequest{Vm: vm, Node: "n1",
		Generation: gen})
	if err != nil || c.Record.GetEnded().GetNode() != "n1" ||
		c.Record.GetEnded().GetGeneration() != c.Record.GetGeneration() {
		t.Errorf("its ownership ended: %v, %v", c, err)
	}
}
