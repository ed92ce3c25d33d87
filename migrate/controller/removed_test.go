package controller_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A record that was removed is told apart from one that the store does not know. This holds also if there is a new
// record of that name. A store that was put back to before the VM was made knows of no removal.
func TestRemovedIsRemembered(t *testing.T) {
	r := newRestored(t)
	copied := r.memory.Copy()
	ask := func(uid string) (*nodev1.Record, error) {
		return r.records.Get(r.as("b"), &nodev1.GetRequest{Vm: web, Uid: uid})
	}
	remove := func(as context.Context, uid string) error {
		_, err := r.records.Remove(as, &nodev1.RemoveRequest{Vm: web, Uid: uid})
		return err
	}
	rec := r.boot(web, "a")
	if _, err := ask("other"); err != nil { // as before: the record that there is
		t.Error(err)
	}
	if err := remove(r.as("a"), rec.GetUid()); !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("a VM that runs is removed: %v", err)
	}
	if _, err := r.records.Disown(r.as("a"), &nodev1.DisownRequest{Vm: web, Node: "a",
		Generation: rec.GetGeneration()}); err != nil {
		t.Fatal(err)
	}
	if err := remove(r.as("b"), rec.GetUid()); !errdefs.IsPermissionDenied(err) {
		t.Fatalf("another node removes it: %v", err)
	}
	if got, err := ask(rec.GetUid()); err != nil || got.GetRemoved() {
		t.Errorf("it stands: %v, %v", got, err)
	}
	if err := remove(r.as("a"), rec.GetUid()); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(rec.GetUid()); err != nil || !got.GetRemoved() || got.GetUid() != rec.GetUid() ||
		got.GetOwner() != nil {
		t.Errorf("after its end: %v, %v", got, err)
	}
	if _, err := ask("other"); !errdefs.IsNotFound(err) {
		t.Errorf("one that never was: %v", err)
	}
	if _, err := ask(""); !errdefs.IsNotFound(err) {
		t.Errorf("a node of a build before: %v", err)
	}
	next := r.boot(web, "b")
	if got, err := ask(rec.GetUid()); err != nil || !got.GetRemoved() {
		t.Errorf("with a new one: %v, %v", got, err)
	}
	if got, err := ask(next.GetUid()); err != nil || got.GetRemoved() {
		t.Errorf("the new one: %v, %v", got, err)
	}
	r.memory.PutBack(copied)
	if _, err := ask(rec.GetUid()); !errdefs.IsNotFound(err) {
		t.Errorf("an old copy: %v", err)
	}
}

// mum is a store whose notes fail.
type mum struct{ *storetest.Memory }

func (mum) Note(context.Context, string, string, []byte) error { return errors.New("EIO") }
func (mum) NoteOf(context.Context, string, string) ([]byte, bool, error) {
	return nil, false, errors.New("EIO")
}
func (mum) Notes(context.Context, string, string) ([]store.Note, error) {
	return nil, errors.New("EIO")
}

// No record is removed before that is noted, and notes that cannot be read are no answer.
func TestRemovalIsNotedFirst(t *testing.T) {
	r := newRestored(t)
	rec := r.boot(web, "a")
	if _, err := r.records.Disown(r.as("a"), &nodev1.DisownRequest{Vm: web, Node: "a",
		Generation: rec.GetGeneration()}); err != nil {
		t.Fatal(err)
	}
	r.records = controller.New(mum{r.memory})
	if _, err := r.records.Remove(r.as("a"), &nodev1.RemoveRequest{Vm: web}); err == nil {
		t.Error("removed without a note")
	}
	r.get(web)
	if _, err := r.records.Get(r.as("a"), &nodev1.GetRequest{Vm: web, Uid: "other"}); err == nil ||
		errdefs.IsNotFound(err) {
		t.Errorf("notes that cannot be read: %v", err)
	}
}

// However many records come and go, the notes of removals are bounded, and the newest stay.
func TestRemovalsAreBounded(t *testing.T) {
	r := newRestored(t)
	last := ""
	for n := range controller.Remembered + 600 {
		vm := &nodev1.VM{Namespace: "ns", Id: fmt.Sprint("vm", n)}
		rec := r.boot(vm, "a")
		if _, err := r.records.Disown(r.as("a"), &nodev1.DisownRequest{Vm: vm, Node: "a",
			Generation: rec.GetGeneration()}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.records.Remove(r.as("a"), &nodev1.RemoveRequest{Vm: vm}); err != nil {
			t.Fatal(err)
		}
		last = rec.GetUid()
	}
	all, err := r.memory.Notes(t.Context(), "removed", "")
	if err != nil || len(all) < controller.Remembered || len(all) > controller.Remembered+256 {
		t.Errorf("%d notes, %v", len(all), err)
	}
	if got, err := r.records.Get(t.Context(), &nodev1.GetRequest{Vm: web, Uid: last}); err != nil || !got.GetRemoved() {
		t.Errorf("the last one: %v, %v", got, err)
	}
}

// A node that makes and removes records without end has none of another node's removals forgotten. Of its own, those
// whose snapshots were kept are remembered longest.
func TestRemovalsOfOthersStay(t *testing.T) {
	r := newRestored(t)
	remove := func(node, id string, keeps bool) string {
		vm := &nodev1.VM{Namespace: "ns", Id: id}
		rec := r.boot(vm, node)
		if keeps {
			rec.Snapshots = []*nodev1.SnapshotRef{{Digest: "sha256:" + id, Repository: "reg/vms/" + rec.GetUid()}}
			if _, err := r.memory.Apply(t.Context(), vm, rec.GetVersion(), transition.Change{Record: rec}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.records.Disown(r.as(node), &nodev1.DisownRequest{Vm: vm, Node: node,
			Generation: rec.GetGeneration()}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.records.Remove(r.as(node), &nodev1.RemoveRequest{Vm: vm}); err != nil {
			t.Fatal(err)
		}
		return rec.GetUid()
	}
	theirs, kept, own := remove("a", "theirs", false), remove("b", "kept", true), remove("b", "own", false)
	for n := range controller.Remembered + 600 {
		remove("b", fmt.Sprint("vm", n), false)
	}
	for what, c := range map[string]struct {
		uid   string
		knows bool
	}{"another node's": {theirs, true}, "its own with snapshots": {kept, true}, "its own": {own, false}} {
		got, err := r.records.Get(t.Context(), &nodev1.GetRequest{Vm: web, Uid: c.uid})
		if knows := err == nil && got.GetRemoved(); knows != c.knows {
			t.Errorf("%s is remembered: %v, want %v: %v", what, knows, c.knows, err)
		}
		_, err = r.records.Ensure(r.as("c"), &nodev1.EnsureRequest{Vm: &nodev1.VM{Namespace: "ns", Id: "thief"}, Uid: c.uid,
			Node: "c"})
		if c.knows != errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: its uid is given to another VM: %v", what, err)
		}
	}
}
