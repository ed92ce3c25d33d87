package controller_test

import (
	"slices"
	"testing"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// deletions answers the pending deletions of the VM web.
func (r *restored) deletions() []*nodev1.Owed {
	r.t.Helper()
	resp, err := r.records.Owed(r.t.Context(), &nodev1.OwedRequest{Vm: web})
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.GetOwed()
}

// A record may be removed from a store which had been put back. It owes all that stands in the VM's own
// repositories, also what was stored after the copy. A node cannot name a repository of another VM.
func TestRemoveDeletesWhatTheCopyDoesNotKnow(t *testing.T) {
	for name, c := range map[string]struct {
		named string
		under []string
		want  int
	}{
		"its own repository":                  {"r/UID", nil, 1},
		"of another VM":                       {"r/other", nil, 0},
		"outside of what is allowed":          {"evil/UID", []string{"r"}, 0},
		"within what is allowed":              {"r/UID", []string{"r"}, 1},
		"a node of a build before names none": {"", nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRestored(t)
			r.records.Under(controller.Policy{Repositories: c.under})
			rec := r.boot(web, "a")
			r.memory.PutBack(r.memory.Copy())
			r.restore("b")
			r.report("a", held(rec, "OWN"))
			r.report("c")
			r.settle()
			rec = r.get(web)
			if _, err := r.records.Disown(r.as("a"), &nodev1.DisownRequest{Vm: web, Node: "a",
				Generation: rec.GetGeneration()}); err != nil {
				t.Fatal(err)
			}
			named := c.named
			if len(named) > 3 && named[len(named)-3:] == "UID" {
				named = named[:len(named)-3] + rec.GetUid()
			}
			if _, err := r.records.Remove(r.as("a"), &nodev1.RemoveRequest{Vm: web, DropSnapshots: true, Payer: "a",
				Repository: named}); err != nil {
				t.Fatal(err)
			}
			deletions := r.deletions()
			if len(deletions) != c.want {
				t.Fatalf("owed: %v", deletions)
			}
			if c.want > 0 && (!record.IsRest(deletions[0].GetSnapshot().GetDigest()) || deletions[0].GetUid() != rec.GetUid() ||
				deletions[0].GetSnapshot().GetRepository() != named || record.Deleter(deletions[0]) != "a") {
				t.Errorf("owed: %v", deletions[0])
			}
		})
	}
}

// A snapshot that a node reports, and that the copy of the store does not know, is listed in the VM's
// record: it goes with the record, and stays while the VM is lost. It never displaces what the record
// knows.
func TestReportedSnapshotIsListed(t *testing.T) {
	r := newRestored(t)
	rec := r.boot(web, "a")
	r.memory.PutBack(r.memory.Copy())
	r.restore()
	left := held(rec, "RELEASED")
	left.Generation, left.Digest, left.Repository, left.Operation = rec.GetGeneration()+1, "sha256:new", "r/"+rec.GetUid(),
		"op"
	foreign := held(rec, "RELEASED")
	foreign.Digest, foreign.Repository = "sha256:foreign", "r/other"
	r.report("a")
	r.report("b", left)
	r.report("c", foreign)
	r.settle()
	now := r.get(web)
	if refs := now.GetSnapshots(); len(refs) != 1 || refs[0].GetDigest() != "sha256:new" || refs[0].GetNode() != "b" ||
		!refs[0].GetFound() {
		t.Fatalf("listed: %v", now)
	}
	if now.GetConflict() == "" {
		t.Fatalf("it has no owner: %v", now)
	}
	if _, err := r.records.Trim(r.t.Context(), &nodev1.TrimRequest{Vm: web, Digest: "sha256:new"}); err == nil {
		t.Error("what may be all that is left of a lost VM is trimmed")
	}
	if _, err := r.records.Remove(r.t.Context(), &nodev1.RemoveRequest{Vm: web, Force: true, DropSnapshots: true,
		Payer: "c"}); err != nil {
		t.Fatal(err)
	}
	digests := []string{}
	for _, o := range r.deletions() {
		digests = append(digests, o.GetSnapshot().GetDigest())
	}
	if !slices.Contains(digests, "sha256:new") || slices.Contains(digests, "sha256:foreign") || len(digests) != 2 {
		t.Errorf("owed: %v", digests)
	}
}

// A node that reports a VM under a name of its own and the uid of another VM gets no record of it: with
// that record it could have the other VM's snapshots deleted, which its uid proves.
func TestReportOfAnotherVMsUID(t *testing.T) {
	for range 20 { // records are settled in any order
		r := newRestored(t)
		rec := r.boot(web, "a")
		r.memory.PutBack(r.memory.Copy())
		r.restore()
		evil := &nodev1.VM{Namespace: "ns", Id: "evil"}
		r.report("a", held(rec, "OWN"))
		r.report("b", &nodev1.Held{Vm: evil, Uid: rec.GetUid(), Generation: 1, Phase: "OWN"})
		r.report("c")
		r.settle()
		if now, err := r.records.Get(t.Context(), &nodev1.GetRequest{Vm: evil}); err == nil {
			t.Fatalf("a record of uid %s: %v", rec.GetUid(), now)
		}
		if now := r.get(web); now.GetOwner().GetNode() != "a" || now.GetConflict() != "" {
			t.Fatalf("the VM itself: %v", now)
		}
	}
}
