package shim

import (
	"slices"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
)

// An exec that is deleted while its VM stands still, or whose guest does not answer, is forgotten by the guest later:
// what is not removed stays in the list that a woken guest answers, for ever.
func TestTheGuestForgetsLater(t *testing.T) {
	w := newWorld(t).running()
	removed := func(id string) func() bool {
		return func() bool {
			return slices.ContainsFunc(w.agent.heard(), func(s string) bool { return strings.HasPrefix(s, `remove "`+id+"#") })
		}
	}
	ended := func(id string) {
		t.Helper()
		w.exec(id)
		w.must("kill", w.kill(id, 9))
		w.wait(id)
	}
	drop := func(id string) {
		t.Helper()
		_, err := w.service.Delete(ctxNS(t), &taskapi.DeleteRequest{ID: "vm", ExecID: id})
		w.must("delete", err)
	}
	ended("paused")
	w.pause()
	drop("paused")
	w.agent.heard()
	w.resume()
	if !eventually(removed("paused")) {
		t.Error("the guest keeps an exec that was deleted in a pause")
	}

	ended("silent")
	ended("next")
	asked := make(chan struct{})
	w.at("remove", func() error { close(asked); return errdefs.ErrUnavailable })
	drop("silent")
	<-asked
	w.at("remove", func() error { return nil })
	w.agent.heard()
	drop("next")
	if !eventually(removed("silent")) {
		t.Error("the guest keeps an exec that it did not answer of")
	}
}
