package transition_test

import (
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const named = "named-1" // the operation of a snapshot that somebody has by a name

func nextVM(i int) *nodev1.VM { return &nodev1.VM{Namespace: "default", Id: fmt.Sprint("next-", i)} }

func nextUID(i int) string { return fmt.Sprint("uid-", i) }

// removedSource is what is left of a VM with a snapshot that has a name, and one that has none.
func removedSource(t interface{ Fatal(...any) }) (held, owed *nodev1.Owed) {
	rec := &nodev1.Record{Vm: vm, Uid: "uid", Generation: gen, Incarnation: 1, Known: 3, Version: 5,
		Snapshots: []*nodev1.SnapshotRef{
			{Digest: digest, Operation: named, Generation: 3, Repository: "r/uid", Manual: true},
			{Digest: "sha256:bb", Operation: "op-2", Generation: 4, Repository: "r/uid"}}}
	c, err := transition.Remove(transition.State{Record: rec}, &nodev1.RemoveRequest{Vm: vm, Uid: "uid", Force: true,
		DropSnapshots: true, Hold: []string{named, "of another VM"}, Version: 5}, now)
	if err != nil || c.Record != nil || len(c.PendingDeletions) != 3 || c.PendingDeletions[2].GetHold() == nil {
		t.Fatal("remove:", c, err)
	}
	return c.PendingDeletions[0], c.PendingDeletions[1]
}

// A removal leaves what has a name, and orders all else deleted. The rest, which would take all that has the uid, is
// left, too. A record that has changed since it was looked at stays.
func TestRemoveHolds(t *testing.T) {
	held, owed := removedSource(t)
	if held.GetHold() == nil || owed.GetHold() != nil || held.GetUid() != "uid" || owed.GetUid() != "uid" ||
		record.Deleter(held) != "-" {
		t.Errorf("held %v, owed %v", held, owed)
	}
	if _, err := transition.Remove(transition.State{Record: &nodev1.Record{Vm: vm, Version: 6}},
		&nodev1.RemoveRequest{Vm: vm, DropSnapshots: true, Version: 5}, now); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a record of another version: %v", err)
	}
}

func ensureNext(t interface{ Fatal(...any) }, i int, id string) *nodev1.Record {
	c, err := transition.Ensure(transition.State{}, &nodev1.EnsureRequest{Vm: nextVM(i), Uid: nextUID(i),
		RestoreFrom: &nodev1.RestoreFrom{Vm: vm, Operation: named, Id: id}}, "")
	if err != nil {
		t.Fatal("ensure:", err)
	}
	return c.Record
}

func mark(i int) *nodev1.Hold { return &nodev1.Hold{Vm: nextVM(i), Uid: nextUID(i), Id: "first"} }

// A VM begins from a snapshot that is held for it, once. Until then no node boots it, whatever asks.
func TestBegin(t *testing.T) {
	held, _ := removedSource(t)
	rec := ensureNext(t, 1, "first")
	boot := &nodev1.OwnRequest{Vm: rec.GetVm(), Node: "n1"}
	if _, err := transition.Own(transition.State{Record: rec}, boot); err == nil {
		t.Error("a VM that has not begun boots")
	}
	if d, err := record.Decide(rec, "n1", record.Intent{}); err == nil {
		t.Errorf("a shim decides %v", d)
	}
	taken, err := transition.Take(held, &nodev1.Hold{}, mark(1))
	if err != nil {
		t.Fatal(err)
	}
	s := transition.State{Record: rec}
	for what, bad := range map[string]*nodev1.Owed{"not marked": held,
		"another operation": of(taken, func(o *nodev1.Owed) {
			o.Snapshot.Operation = "op-2"
		}), "another VM's mark": of(taken, func(o *nodev1.Owed) { o.Hold = mark(2) }), "another uid": of(taken,
			func(o *nodev1.Owed) { o.Hold.Uid = nextUID(2) }), "a record of before": of(taken, func(o *nodev1.Owed) {
			o.Hold.Id = "before"
		}), "of another VM": of(taken, func(o *nodev1.Owed) {
			o.Vm = nextVM(3)
		}), "to be deleted": of(taken, func(o *nodev1.Owed) { o.Hold = nil })} {
		if c, err := transition.Begin(s, bad); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v, %v", what, c.Record, err)
		}
	}
	c, err := transition.Begin(s, taken)
	if err != nil {
		t.Fatal(err)
	}
	now := c.Record
	ref := now.GetSnapshots()[0]
	if now.GetOwner().GetDigest() != digest || now.GetGeneration() != 1 || now.GetRepository() != "r/uid" ||
		ref.GetOrigin().GetUid() != "uid" || !proto.Equal(ref.GetOrigin().GetVm(), vm) || !ref.GetManual() ||
		now.GetBase() != digest {
		t.Errorf("it has become %v", now)
	}
	if again, err := transition.Begin(transition.State{Record: now}, held); err != nil || again.Record != now {
		t.Errorf("once more: %v, %v", again.Record, err)
	}
	if _, err := transition.Begin(transition.State{Record: &nodev1.Record{Vm: nextVM(1), Uid: nextUID(1)}},
		taken); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a record that boots: %v", err)
	}
	if use := transition.InUse(now, digest); use == "" {
		t.Error("nothing keeps the snapshot that owns the VM")
	}
	if c, err := transition.Remove(transition.State{Record: now}, &nodev1.RemoveRequest{Vm: now.GetVm(), Force: true,
		DropSnapshots: true}, tested); err != nil || len(c.PendingDeletions) != 0 {
		t.Errorf("the VM that has begun from it deletes it: %v, %v", c.PendingDeletions, err)
	}
}

var tested = now

func of(o *nodev1.Owed, change func(*nodev1.Owed)) *nodev1.Owed {
	o = proto.CloneOf(o)
	change(o)
	return o
}

// Of two VMs that read the same mark, one changes it. So it is with a VM and the end of what is held.
func TestMarkIsOneSwap(t *testing.T) {
	held, _ := removedSource(t)
	first, err := transition.Take(held, &nodev1.Hold{}, mark(1))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := transition.Take(first, &nodev1.Hold{}, mark(1)); err != nil || again != first {
		t.Errorf("once more: %v, %v", again, err)
	}
	if _, err := transition.Take(first, &nodev1.Hold{}, mark(2)); !errdefs.IsConflict(err) {
		t.Errorf("the second VM: %v", err)
	}
	if _, err := transition.Release(first, &nodev1.Hold{}, false, now); !errdefs.IsConflict(err) {
		t.Errorf("the end, as it was seen before: %v", err)
	}
	if next, err := transition.Take(first, mark(1), mark(2)); err != nil || !proto.Equal(next.GetHold(), mark(2)) {
		t.Errorf("once the first VM is gone: %v, %v", next, err)
	}
	owed, err := transition.Release(held, &nodev1.Hold{}, false, now)
	if err != nil || owed.GetHold() != nil || owed.GetPayer() != "" {
		t.Errorf("what is to be deleted: %v, %v", owed, err)
	}
	if _, err := transition.Take(owed, nil, mark(1)); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("of what is to be deleted: %v", err)
	}
	if kept, err := transition.Release(held, &nodev1.Hold{}, true, now); err != nil || kept != nil {
		t.Errorf("what stays in its registry: %v, %v", kept, err)
	}
}

// An earlier build knows no holds, and has the node delete what is in a directory that this node made. So what is held
// names no node. Who begins from it, and what deletes it, know the node again.
func TestHeldInADirectory(t *testing.T) {
	rec := &nodev1.Record{Vm: vm, Uid: "uid", Generation: gen, Snapshots: []*nodev1.SnapshotRef{
		{Digest: digest, Operation: named, Generation: 3, Repository: "oci-layout:/x/uid", Node: "a"}}}
	restInADirectory(t, proto.CloneOf(rec))
	c, err := transition.Remove(transition.State{Record: rec}, &nodev1.RemoveRequest{Vm: vm, Uid: "uid", Force: true,
		DropSnapshots: true, Hold: []string{named}}, now)
	if err != nil || len(c.PendingDeletions) != 1 {
		t.Fatal(c, err)
	}
	held := c.PendingDeletions[0]
	if got := record.Deleter(held); got != "-" || rec.GetSnapshots()[0].GetNode() != "a" {
		t.Errorf("%q deletes it, of %v", got, rec)
	}
	taken, err := transition.Take(held, &nodev1.Hold{}, mark(1))
	if err != nil {
		t.Fatal(err)
	}
	c, err = transition.Begin(transition.State{Record: ensureNext(t, 1, "first")}, taken)
	if err != nil || c.Record.GetSnapshots()[0].GetNode() != "a" {
		t.Errorf("it begins: %v, %v", c.Record, err)
	}
	owed, err := transition.Release(taken, mark(1), false, now)
	if err != nil || record.Deleter(owed) != "a" || owed.GetSnapshot().GetNode() != "a" {
		t.Errorf("released: %v, %v", owed, err)
	}
}

// restInADirectory has the rest of a VM, of a store that was put back from a copy, stay with what is held. In the end
// it is deleted by the same nodes as if nothing had been held.
func restInADirectory(t *testing.T, rec *nodev1.Record) {
	t.Helper()
	rec.Incarnation, rec.Repository = 1, rec.GetSnapshots()[0].GetRepository()
	removed := func(hold ...string) []*nodev1.Owed {
		c, err := transition.Remove(transition.State{Record: proto.CloneOf(rec)}, &nodev1.RemoveRequest{Vm: vm, Uid: "uid",
			Force: true, DropSnapshots: true, Hold: hold}, now)
		if err != nil || len(c.PendingDeletions) < 2 {
			t.Fatal(c, err)
		}
		return c.PendingDeletions
	}
	by := map[string]string{}
	for _, o := range removed() {
		by[o.GetSnapshot().GetDigest()] = record.Deleter(o)
	}
	all := removed(named)
	for _, o := range all {
		if got := record.Deleter(o); got != "-" || o.GetHold() == nil {
			t.Errorf("%q deletes %v", got, o)
		}
	}
	owed, err := transition.Release(all[0], all[0].GetHold(), false, now)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range transition.AfterHeld(all, all[0], owed) {
		if got := record.Deleter(o); got != by[o.GetSnapshot().GetDigest()] || o.GetHold() != nil {
			t.Errorf("%q deletes %v, want %v", got, o, by)
		}
	}
}

// A node says neither from what a VM begins, nor which snapshots stay, nor whether they are sealed or signed: those
// fields are the controller's.
func TestEnsureOfABeginning(t *testing.T) {
	from := &nodev1.RestoreFrom{Vm: vm, Operation: named, Id: "i"}
	for what, req := range map[string]*nodev1.EnsureRequest{
		"for a node": {Vm: nextVM(1), Uid: "u", Node: "n1", RestoreFrom: from},
		"sealed":     {Vm: nextVM(1), Uid: "u", Node: "n1", Sealed: true},
		"signed":     {Vm: nextVM(1), Uid: "u", Node: "n1", Signed: true},
		"nothing":    {Vm: nextVM(1), Uid: "u", RestoreFrom: &nodev1.RestoreFrom{}},
		"has begun": {Vm: nextVM(1), Uid: "u", RestoreFrom: &nodev1.RestoreFrom{Vm: vm, Operation: named, Id: "i",
			Begun: true}},
		"a wrong VM": {Vm: nextVM(1), Uid: "u", RestoreFrom: &nodev1.RestoreFrom{Vm: &nodev1.VM{Id: "../x"}, Operation: named,
			Id: "i"}},
		"a wrong one": {Vm: nextVM(1), Uid: "u", RestoreFrom: &nodev1.RestoreFrom{Vm: vm, Operation: "a/b", Id: "i"}},
		"no id":       {Vm: nextVM(1), Uid: "u", RestoreFrom: &nodev1.RestoreFrom{Vm: vm, Operation: named}},
	} {
		if c, err := transition.Ensure(transition.State{}, req, ""); err == nil {
			t.Errorf("%s: %v", what, c.Record)
		}
	}
}

// beginnings are several VMs that begin from one snapshot, by orders that were decided on what was read long before.
type beginnings struct {
	held    *nodev1.Owed // nil: it is forgotten
	recs    map[int]*nodev1.Record
	seen    [3]look // by who decides
	made    int
	deleted bool
}

// look is what was read: first the mark, then whether the VM of that mark is gone, or needs the snapshot no more.
type look struct {
	held        *nodev1.Owed
	rec         *nodev1.Record
	gone, spare bool
}

func (b *beginnings) look(t *rapid.T) {
	if b.held == nil {
		return
	}
	i := b.one(t)
	l := look{held: proto.CloneOf(b.held), rec: b.recs[i], gone: true, spare: true}
	for _, rec := range b.recs {
		if !transition.Marked(l.held, rec) {
			continue
		}
		l.gone, l.spare = false, !record.Begins(rec)
		for _, ref := range rec.GetSnapshots() {
			l.spare = l.spare && ref.GetDigest() != digest
		}
	}
	b.seen[i] = l
}

func (b *beginnings) one(t *rapid.T) int { return rapid.IntRange(1, 2).Draw(t, "vm") }

// ensure may come after the record was made and removed: an operator that was late made it again.
func (b *beginnings) ensure(t *rapid.T) {
	if i := b.one(t); b.recs[i] == nil {
		b.made++
		b.recs[i] = ensureNext(t, i, fmt.Sprint("made-", b.made))
	}
}

func (b *beginnings) remove(t *rapid.T) {
	i := b.one(t)
	if c, err := transition.Remove(transition.State{Record: b.recs[i]}, &nodev1.RemoveRequest{Vm: nextVM(i), Force: true,
		DropSnapshots: true}, now); err == nil && b.recs[i] != nil {
		delete(b.recs, i)
		if len(c.PendingDeletions) > 0 {
			t.Fatal("a VM that has begun from a snapshot deletes it")
		}
	}
}

func (b *beginnings) take(t *rapid.T) {
	l := b.seen[b.one(t)]
	if b.held == nil || l.held == nil || !record.Begins(l.rec) || !l.gone {
		return
	}
	if next, err := transition.Take(b.held, l.held.GetHold(), transition.MarkOf(l.rec)); err == nil {
		b.held = next
	}
}

func (b *beginnings) begin(t *rapid.T) {
	i := b.one(t)
	if b.recs[i] == nil || b.seen[i].held == nil {
		return
	}
	if c, err := transition.Begin(transition.State{Record: b.recs[i]}, b.seen[i].held); err == nil {
		b.recs[i] = c.Record
	}
}

// trim is an order to delete the snapshot, which the VM that has gone on does not need any more.
func (b *beginnings) trim(t *rapid.T) {
	i := b.one(t)
	if c, err := transition.Trim(transition.State{Record: b.recs[i]}, &nodev1.TrimRequest{Vm: nextVM(i), Digest: digest,
		Ordered: true}, now); err == nil && b.recs[i] != nil {
		b.recs[i] = c.Record
		if len(c.PendingDeletions) > 0 {
			t.Fatal("a VM that has begun from a snapshot deletes it")
		}
	}
}

// goOn has a VM that sleeps in the snapshot sleep in a later one.
func (b *beginnings) goOn(t *rapid.T) {
	if i := b.one(t); b.recs[i].GetOwner().GetDigest() == digest {
		b.recs[i] = proto.CloneOf(b.recs[i])
		b.recs[i].Owner.Digest = "sha256:later"
	}
}

func (b *beginnings) release(t *rapid.T) {
	l := b.seen[b.one(t)]
	if b.held == nil || l.held == nil || !l.spare {
		return
	}
	next, err := transition.Release(b.held, l.held.GetHold(), false, now)
	if err != nil {
		return
	}
	b.held, b.deleted = nil, next.GetHold() == nil
}

// However late each step comes, one VM has the snapshot at a time, and none whose deletion is ordered.
func TestOneVMBegins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		held, _ := removedSource(t)
		b := &beginnings{held: held, recs: map[int]*nodev1.Record{}}
		t.Repeat(map[string]func(*rapid.T){"look": b.look, "ensure": b.ensure, "remove": b.remove, "take": b.take,
			"begin": b.begin, "trim": b.trim, "go on": b.goOn, "release": b.release,
			"": func(t *rapid.T) {
				have := 0
				for i, rec := range b.recs {
					if c, err := transition.Own(transition.State{Record: rec}, &nodev1.OwnRequest{Vm: nextVM(i), Node: "n1",
						Generation: rec.GetGeneration()}); err == nil {
						t.Fatalf("VM %d boots: %v", i, c.Record)
					}
					for _, ref := range rec.GetSnapshots() {
						if ref.GetDigest() == digest {
							have++
						}
					}
				}
				if have > 1 || have > 0 && b.deleted {
					t.Fatalf("%d VMs have the snapshot, deleted: %v", have, b.deleted)
				}
			}})
	})
}
