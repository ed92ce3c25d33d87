package controller_test

import (
	"context"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// counted is a store that notes which calls it gets.
type counted struct {
	store.Store
	calls []string
}

func (c *counted) Load(ctx context.Context, vm *nodev1.VM, asked transition.Asked) (transition.State, error) {
	c.calls = append(c.calls, "load")
	return c.Store.Load(ctx, vm, asked)
}

func (c *counted) Apply(ctx context.Context, vm *nodev1.VM, version uint64, change transition.Change) (*nodev1.Record,
	error) {
	c.calls = append(c.calls, "apply")
	return c.Store.Apply(ctx, vm, version, change)
}

// move is a live move from src to dest, as its driver and its destination call for it.
type move struct {
	t   *testing.T
	vm  *nodev1.VM
	gen uint64
}

// transferring is a live move whose VM is sent.
func transferring(t *testing.T, svc *controller.Service) move {
	t.Helper()
	m := move{t: t, vm: &nodev1.VM{Namespace: "default", Id: "vm"}}
	m.ok(svc.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: m.vm}))
	m.gen = m.ok(svc.Own(t.Context(), &nodev1.OwnRequest{Vm: m.vm, Node: "src"})).GetGeneration()
	m.ok(svc.Open(t.Context(), &nodev1.OpenRequest{Vm: m.vm, Operation: &nodev1.Operation{Id: "m", Attempt: 1,
		Kind: nodev1.Kind_KIND_MIGRATE, Mode: "live", Source: "src", Destination: "dest", Generation: m.gen}}))
	m.ok(m.advance(svc, nodev1.Phase_PHASE_PREPARING))
	m.ok(m.advance(svc, nodev1.Phase_PHASE_TRANSFERRING))
	return m
}

func (m move) ok(rec *nodev1.Record, err error) *nodev1.Record {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
	return rec
}

func (m move) advance(svc *controller.Service, phase nodev1.Phase) (*nodev1.Record, error) {
	req := &nodev1.AdvanceRequest{Vm: m.vm, Operation: "m", Attempt: 1, Generation: m.gen, Phase: phase}
	if phase == nodev1.Phase_PHASE_SWITCHING {
		req.Digest = "stream:1"
	}
	return svc.Advance(m.t.Context(), req)
}

func (m move) commit(svc *controller.Service) (*nodev1.Record, error) {
	receipt := record.Receipt{Operation: "m", Attempt: 1, Generation: m.gen, Digest: "stream:1", Stopped: true}
	return svc.Commit(m.t.Context(), &nodev1.CommitRequest{Vm: m.vm, Operation: "m", Attempt: 1, Generation: m.gen,
		Owner: &nodev1.Owner{Node: "dest"}, Receipt: receipt.String()})
}

// phase is that of the move, for somebody who takes what the controller has just written.
func (m move) phase(svc *controller.Service, recent bool) nodev1.Phase {
	m.t.Helper()
	return m.ok(svc.Get(m.t.Context(), &nodev1.GetRequest{Vm: m.vm, Recent: recent})).GetOperation().GetPhase()
}

// A VM that is moved live stands still for two calls of the store: the write of Switching, and the commit. The driver
// reads the record before each step, and the destination before it runs the VM.
func TestMoveStandsStillForTwoWrites(t *testing.T) {
	st := &counted{Store: storetest.NewMemory()}
	svc := controller.New(st)
	m := transferring(t, svc)
	st.calls = nil
	m.ok(m.advance(svc, nodev1.Phase_PHASE_SWITCHING))
	if got := m.phase(svc, true); got != nodev1.Phase_PHASE_SWITCHING {
		t.Errorf("the driver reads %s", got)
	}
	if rec := m.ok(m.commit(svc)); rec.GetOwner().GetNode() != "dest" {
		t.Errorf("committed to %s", rec.GetOwner())
	}
	for range 2 { // driver, destination
		if got := m.phase(svc, true); got != nodev1.Phase_PHASE_COMMITTED {
			t.Errorf("they read %s", got)
		}
	}
	if want := []string{"apply", "apply"}; !slices.Equal(st.calls, want) {
		t.Errorf("calls of the store %v, want %v", st.calls, want)
	}
	if m.phase(svc, false); len(st.calls) != 3 {
		t.Error("who does not ask for what is recent is not answered by the store")
	}
}

// What a controller wrote last proves nothing where another one writes too: each case has the second change the record
// after the first.
func TestRecentProvesNothing(t *testing.T) {
	aborting := func(m move, other *controller.Service) { m.ok(m.advance(other, nodev1.Phase_PHASE_ABORTING)) }
	for _, c := range []struct {
		name    string
		written nodev1.Phase // by the first
		other   func(move, *controller.Service)
		do      func(move, *controller.Service) (*nodev1.Record, error)
	}{
		{"a write", nodev1.Phase_PHASE_TRANSFERRING, aborting, func(m move, svc *controller.Service) (*nodev1.Record, error) {
			return m.advance(svc, nodev1.Phase_PHASE_SWITCHING)
		}},
		{"the commit", nodev1.Phase_PHASE_SWITCHING, aborting, move.commit},
		{"what is done already", nodev1.Phase_PHASE_SWITCHING, aborting,
			func(m move, svc *controller.Service) (*nodev1.Record, error) {
				return m.advance(svc, nodev1.Phase_PHASE_SWITCHING)
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := storetest.NewMemory()
			svc, other := controller.New(st), controller.New(st)
			m := transferring(t, svc)
			if c.written != nodev1.Phase_PHASE_TRANSFERRING {
				m.ok(m.advance(svc, c.written))
			}
			c.other(m, other)
			if rec, err := c.do(m, svc); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("answered %v, %v", rec.GetOperation(), err)
			}
			if got := m.phase(svc, true); got != nodev1.Phase_PHASE_ABORTING {
				t.Errorf("afterwards it reads %s", got)
			}
		})
	}
}

// What the memory would refuse is asked of the store.
func TestRecentRefusesNothing(t *testing.T) {
	st := storetest.NewMemory()
	svc, other := controller.New(st), controller.New(st)
	m := transferring(t, svc)
	m.ok(m.advance(other, nodev1.Phase_PHASE_SWITCHING))
	if rec := m.ok(m.commit(svc)); rec.GetOwner().GetNode() != "dest" { // the first one remembers Transferring
		t.Errorf("committed to %s", rec.GetOwner())
	}
}

// A move that is over is not remembered: what comes then may be another controller's.
func TestRecentEnds(t *testing.T) {
	st := &counted{Store: storetest.NewMemory()}
	svc := controller.New(st)
	m := transferring(t, svc)
	m.ok(m.advance(svc, nodev1.Phase_PHASE_ABORTING))
	st.calls = nil
	if m.phase(svc, true); len(st.calls) != 1 {
		t.Error("a move that is called off is answered without the store")
	}
}
