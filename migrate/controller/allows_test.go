package controller_test

import (
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Who asks before a VM is ended hears what the change after that would hear: what was killed cannot be had back.
func TestAllowsWhatWouldBeDone(t *testing.T) {
	r := newRestored(t)
	r.records.Under(controller.Policy{Pull: controller.PullController})
	slept, other := r.copied("slept"), r.copied("other")
	asks := func(what, node string, rec *nodev1.Record, changes, removes func(error) bool) {
		t.Helper()
		for _, c := range []struct {
			name string
			req  *nodev1.GetRequest
			is   func(error) bool
		}{{"get", &nodev1.GetRequest{}, nil}, {"change", &nodev1.GetRequest{Changes: true, Recent: true}, changes},
			{"remove", &nodev1.GetRequest{Removes: true, Recent: true}, removes}} {
			c.req.Vm = rec.GetVm()
			if _, err := r.records.Get(r.as(node), c.req); c.is == nil && err != nil || c.is != nil && !c.is(err) {
				t.Errorf("%s: %s: %v", what, c.name, err)
			}
		}
	}
	asks("at first", "a", slept, nil, nil)
	now := r.claimed(slept, "OWN")
	asks("by its word", "b", now, nil, errdefs.IsPermissionDenied)
	if _, err := r.records.Get(t.Context(), &nodev1.GetRequest{Vm: now.GetVm(), Removes: true}); err != nil {
		t.Errorf("the controller itself: %v", err)
	}
	asks("another", "a", other, nil, nil)
	asks("another's", "b", other, nil, errdefs.IsPermissionDenied)
	r.restore()
	asks("nodes have not reported", "a", other, errdefs.IsUnavailable, errdefs.IsUnavailable)
	none := &nodev1.Record{Vm: vmOf("none")}
	_, err := r.records.Get(r.as("b"), &nodev1.GetRequest{Vm: none.GetVm(), Changes: true})
	if !errdefs.IsUnavailable(err) {
		t.Errorf("a VM without a record, while no record changes: %v", err)
	}
}
