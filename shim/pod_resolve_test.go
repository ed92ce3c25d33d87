package shim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// TestPodResolve: a sandbox is created for a pod that the controller lets be the VM, and for no other. A controller
// that knows no pods leaves it to the name. What is refused has no VM.
func TestPodResolve(t *testing.T) {
	failed := errdefs.IsFailedPrecondition
	for name, test := range map[string]struct {
		resolved *nodev1.ResolveResponse
		err      error
		onStop   bool
		class    func(error) bool // nil: it is created
		says     string
	}{
		"its VM":                  {resolved: &nodev1.ResolveResponse{Uid: "uid"}},
		"its VM, with the opt-in": {resolved: &nodev1.ResolveResponse{Uid: "uid", GraceMs: 600000}, onStop: true},
		"of no object":            {resolved: &nodev1.ResolveResponse{}},
		"of no object, with opt-in": {resolved: &nodev1.ResolveResponse{}, onStop: true,
			class: failed, says: "on-stop"},
		"no Kubernetes":               {err: errdefs.ErrNotImplemented},
		"no Kubernetes, with opt-in":  {err: errdefs.ErrNotImplemented, onStop: true, class: failed, says: "on-stop"},
		"a stranger":                  {err: errdefs.ErrPermissionDenied, class: errdefs.IsPermissionDenied},
		"it sleeps":                   {err: errdefs.ErrFailedPrecondition, class: failed, says: "team/"},
		"no answer":                   {err: errdefs.ErrUnavailable, class: errdefs.IsUnavailable, says: "team/"},
		"an answer that is not known": {err: errFake, class: errdefs.IsUnavailable, says: "team/"},
		"the VM of another record":    {resolved: &nodev1.ResolveResponse{Uid: "u2"}, class: failed, says: "u2"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.podNotes = map[string]string{"godwit.dev/vm": "web"}
			if test.onStop {
				w.podNotes["godwit.dev/on-stop"] = "hibernate"
			}
			k := &knowing{w: w, resolved: test.resolved}
			if test.err != nil {
				k.refuses = fmt.Errorf("asked: %w", test.err)
			}
			w.pods = k
			err := errgrpc.ToNative(w.createPod())
			switch {
			case test.class == nil:
				w.must("create pod", err)
			case !test.class(err) || !strings.Contains(err.Error(), test.says):
				t.Errorf("create: %v", err)
			case w.records.rec.GetOwner().GetNode() != "":
				t.Errorf("it was refused, and the record is %v", w.records.rec)
			}
		})
	}
}
