package moves

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A node that hangs holds nothing up: not where the order's own has a copy, hardly where one fits, and where none
// does for as long as a node may take.
func TestWakeWaitsForNoNodeThatHangs(t *testing.T) {
	for name, tt := range map[string]struct {
		copied, fits bool
		to           string
		most         time.Duration
	}{
		"a copy here": {copied: true, fits: true, to: "a"}, "it fits": {fits: true, to: "a", most: askMore},
		"it fits none": {most: askBound},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, service := newSleeper()
				s.all["c"].hangs = true
				s.all["a"].says.Copy = tt.copied
				if !tt.fits {
					s.all["a"].says.Obstacles, s.all["b"].says.Obstacles = []string{"no"}, []string{"no"}
				}
				begun := time.Now()
				_, err := service.Wake(t.Context(), &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Vm: s.rec.GetVm()}})
				if took := time.Since(begun); took > tt.most || (err == nil) != tt.fits {
					t.Errorf("after %v: %v", took, err)
				}
				for node, p := range s.all {
					if (p.woken != nil) != (node == tt.to) {
						t.Errorf("node %s: woken %v", node, p.woken)
					}
				}
			})
		})
	}
}

// A node that is cordoned has no VM woken on it: not where the order goes to it because the VM is in
// an operation, and not where the cordon comes while the nodes are asked.
func TestWakeOnACordonedNode(t *testing.T) {
	s, service := newSleeper()
	s.all["a"].info.Cordoned = true
	s.rec.Operation = &nodev1.Operation{Id: "h", Kind: nodev1.Kind_KIND_HIBERNATE, Phase: nodev1.Phase_PHASE_CLEANING,
		Source: "a"}
	order := &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Vm: s.rec.GetVm()}}
	if _, err := service.Wake(t.Context(), order); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "godwit uncordon a") || s.woke() != "" {
		t.Errorf("in an operation: %v, woken on %q", err, s.woke())
	}
	s, service = newSleeper()
	s.all["a"].says.Copy, s.all["a"].cordons = true, true
	if _, err := service.Wake(t.Context(), order); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "godwit uncordon a") || s.woke() != "" {
		t.Errorf("meanwhile: %v, woken on %q", err, s.woke())
	}
}

// A node that orders a wake does not say where output goes on another one.
func TestWakeKeepsOutputToANode(t *testing.T) {
	for node, refused := range map[string]bool{"b": false, "c": true} {
		s, service := newSleeper()
		s.all["b"].says.Copy = true
		_, err := service.Wake(controller.WithPeer(t.Context(), node),
			&nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Vm: s.rec.GetVm(), Stdio: "binary:///bin/sh"}})
		if errdefs.IsPermissionDenied(err) != refused || (s.all["b"].woken == nil) != refused {
			t.Errorf("by node %s: %v, woken %v", node, err, s.all["b"].woken)
		}
	}
}
