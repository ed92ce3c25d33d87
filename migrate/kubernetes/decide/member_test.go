package decide_test

import (
	"testing"

	"godwit.dev/godwit/migrate/kubernetes/decide"
)

// Which uid the new record of a VM gets. That of a set only if the set itself names the VM.
func TestUIDOfANewRecord(t *testing.T) {
	unborn := func(o *decide.VM) { o.Record, o.Pods = nil, nil }
	for name, test := range map[string]struct {
		change func(*decide.VM)
		uid    string // empty: no record is made
	}{
		"a VM":     {func(*decide.VM) {}, "u1"},
		"a member": {worker(set()), "s1.worker"},
		"a member without its label": {func(o *decide.VM) {
			worker(set())(o)
			o.Object.Labels = nil
		}, "s1.worker"},
		"a copy of a member": {func(o *decide.VM) {
			worker(set())(o)
			o.Object.Name = "copy"
		}, ""},
		"the set is of another namespace": {func(o *decide.VM) {
			worker(set())(o)
			o.Set = nil // there is none of that name in its own
		}, ""},
		"the set was made again": {func(o *decide.VM) {
			worker(set())(o)
			o.Set = set()
			o.Set.UID = "s2"
		}, ""},
		"the label alone": {func(o *decide.VM) {
			worker(set())(o)
			o.Object.OwnerReferences, o.Set = nil, nil
		}, "u1"},
	} {
		next := decide.NextVM(world(unborn, test.change))
		got := ""
		if next.Do == decide.EnsureRecord {
			got = next.UIDs[0]
		}
		if got != test.uid || test.uid == "" && (!next.Refused || next.Waits != decide.ReasonInvalid) {
			t.Errorf("%s: uid %q, want %q: %+v", name, got, test.uid, next)
		}
	}
}
