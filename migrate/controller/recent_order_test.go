package controller_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// lateStore is a store that has written Switching, and whose answer comes after something else.
// Its answers to Aborting may be lost.
type lateStore struct {
	store.Store
	first func()
	lost  bool
}

func (s *lateStore) Apply(ctx context.Context, vm *nodev1.VM, version uint64, change transition.Change) (*nodev1.Record,
	error) {
	rec, err := s.Store.Apply(ctx, vm, version, change)
	switch first := s.first; {
	case rec.GetOperation().GetPhase() == nodev1.Phase_PHASE_SWITCHING && first != nil:
		s.first = nil
		first()
	case rec.GetOperation().GetPhase() == nodev1.Phase_PHASE_ABORTING && s.lost:
		return nil, fmt.Errorf("write: %w", errdefs.ErrUnavailable)
	}
	return rec, err
}

// A write whose answer comes late is not remembered over the next one, whatever came of that.
func TestRecentKeepsTheOrderOfTheStore(t *testing.T) {
	for name, lost := range map[string]bool{"the next one is written": false, "the next answer is lost": true} {
		t.Run(name, func(t *testing.T) {
			st := &lateStore{Store: storetest.NewMemory(), lost: lost}
			svc := controller.New(st)
			m := transferring(t, svc)
			st.first = func() {
				if _, err := m.advance(svc, nodev1.Phase_PHASE_ABORTING); (err != nil) != lost {
					t.Error(err)
				}
			}
			m.ok(m.advance(svc, nodev1.Phase_PHASE_SWITCHING))
			if got := m.phase(svc, true); got != nodev1.Phase_PHASE_ABORTING {
				t.Errorf("a destination reads %s of a move that is called off", got)
			}
		})
	}
}
