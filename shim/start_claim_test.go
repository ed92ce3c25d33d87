package shim

import (
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A fresh boot whose claim was given up, or went to another node, between Create and Start executes no instruction,
// from a template or not. So does one whose record cannot be read. One whose claim stands runs.
func TestStartProvesTheClaim(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fakeRecords)
		want   func(error) bool
	}{
		"given up": {func(r *fakeRecords) {
			r.rec.Owner, r.rec.Generation = nil, r.rec.GetGeneration()+1
		}, errdefs.IsFailedPrecondition},
		"another node's": {func(r *fakeRecords) {
			r.rec.Owner, r.rec.Generation = &nodev1.Owner{Node: "b"}, r.rec.GetGeneration()+2
		}, errdefs.IsFailedPrecondition},
		"claimed again": {func(r *fakeRecords) { r.rec.Generation++ }, errdefs.IsFailedPrecondition},
		"of an old copy": {func(r *fakeRecords) {
			r.rec.Owner, r.rec.Generation = &nodev1.Owner{}, 0
		}, errdefs.IsFailedPrecondition},
		"about to be given up": {func(r *fakeRecords) { r.rec.Missing = true }, errdefs.IsFailedPrecondition},
		"another VM's record":  {func(r *fakeRecords) { r.rec.Uid = "other" }, errdefs.IsFailedPrecondition},
		"in conflict": {func(r *fakeRecords) {
			r.rec.Conflict, r.rec.Rivals = "b has it too", true
		}, errdefs.IsFailedPrecondition},
		"no answer": {func(r *fakeRecords) { r.lose = "get" }, errdefs.IsUnavailable},
		"it stands": {func(*fakeRecords) {}, func(err error) bool { return err == nil }},
	} {
		for _, template := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t)
				if template {
					w.withTemplate()
				}
				w.must("create", w.create())
				w.records.mu.Lock()
				c.change(w.records)
				w.records.mu.Unlock()
				w.machine = nil
				err := errgrpc.ToNative(w.start())
				if !c.want(err) {
					t.Errorf("start: %v", err)
				}
				if ran := w.machine != nil; ran != (err == nil) {
					t.Errorf("the guest has run: %v, after %v", ran, err)
				}
			})
		}
	}
}
