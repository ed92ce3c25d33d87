package controller_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// dying is a store whose controller is killed at one of its calls: before it was made, or after.
type dying struct {
	*storetest.Memory
	calls, at int
	after     bool
}

func (d *dying) dies(do func() error) error {
	d.calls++
	if d.calls == d.at && !d.after {
		return errdefs.ErrUnavailable
	}
	err := do()
	if d.calls == d.at {
		return errdefs.ErrUnavailable
	}
	return err
}

func (d *dying) State(ctx context.Context) (s *nodev1.StoreState, err error) {
	return s, d.dies(func() error { s, err = d.Memory.State(ctx); return err })
}

func (d *dying) SetState(ctx context.Context, version uint64, state *nodev1.StoreState) (s *nodev1.StoreState,
	err error) {
	return s, d.dies(func() error { s, err = d.Memory.SetState(ctx, version, state); return err })
}

func (d *dying) Load(ctx context.Context, vm *nodev1.VM, asked transition.Asked) (s transition.State, err error) {
	return s, d.dies(func() error { s, err = d.Memory.Load(ctx, vm, asked); return err })
}

func (d *dying) Apply(ctx context.Context, vm *nodev1.VM, version uint64, c transition.Change) (r *nodev1.Record,
	err error) {
	return r, d.dies(func() error { r, err = d.Memory.Apply(ctx, vm, version, c); return err })
}

func (d *dying) List(ctx context.Context, after string, room int) (all []*nodev1.Record, err error) {
	return all, d.dies(func() error { all, err = d.Memory.List(ctx, after, room); return err })
}

func (d *dying) Note(ctx context.Context, kind, key string, value []byte) error {
	return d.dies(func() error { return d.Memory.Note(ctx, kind, key, value) })
}

func (d *dying) NoteOf(ctx context.Context, kind, key string) (value []byte, there bool, err error) {
	return value, there, d.dies(func() error { value, there, err = d.Memory.NoteOf(ctx, kind, key); return err })
}

func (d *dying) Notes(ctx context.Context, kind, after string) (all []store.Note, err error) {
	return all, d.dies(func() error { all, err = d.Memory.Notes(ctx, kind, after); return err })
}

// A controller may be killed before or after any of its steps. It leaves a store in which nothing changes until the
// next controller has done the rest: the records come out as without the death, and no VM can be claimed by two
// meanwhile.
func TestRestoreKilledAtEachStep(t *testing.T) {
	deaths := 0
	for at := 1; ; at++ {
		died := false
		for _, after := range []bool{false, true} {
			d := restoreWithDeath(t, at, after)
			died = died || d.calls >= at
		}
		if !died {
			break
		}
		deaths++
	}
	if deaths < 20 {
		t.Errorf("%d places to die at", deaths)
	}
}

func restoreWithDeath(t *testing.T, at int, after bool) *dying {
	t.Helper()
	r := newRestored(t)
	other := &nodev1.VM{Namespace: "ns", Id: "other"}
	onA, stays := r.boot(web, "a"), r.boot(other, "a")
	copied := r.memory.Copy()
	onB := r.give(onA, "b")
	r.memory.PutBack(copied)
	d := &dying{Memory: r.memory, at: at, after: after}
	restart := func() {
		r.records = controller.New(d)
		r.whole = controller.NewIncarnations(d, d, "c", func() []string { return r.nodes }, r.now)
	}
	restart()
	name := fmt.Sprintf("dies at call %d, after it %v", at, after)
	again := func(what string, do func() error) { // a caller asks again, the controller is another one
		if do() == nil {
			return
		}
		restart()
		if err := do(); err != nil {
			t.Fatalf("%s: %s: %v", name, what, err)
		}
	}
	again("restore", func() error { _, err := r.whole.Restore(t.Context(), &nodev1.RestoreRequest{}); return err })
	holds := map[string][]*nodev1.Held{"a": {held(stays, "OWN")}, "b": {held(onB, "OWN")}, "c": nil}
	for _, node := range r.nodes {
		again("report of "+node, func() error {
			_, err := r.whole.Report(r.as(node), &nodev1.ReportRequest{Node: node, Held: holds[node]})
			return err
		})
	}
	var state *nodev1.StoreState
	for range 4 { // nodes give heartbeats
		r.clock = r.clock.Add(controller.SettleDelay)
		again("tend", func() (err error) { state, err = r.whole.State(t.Context(), &nodev1.StateRequest{}); return err })
		if _, err := r.records.Own(r.as("a"), &nodev1.OwnRequest{Vm: web, Node: "a", Generation: onA.GetGeneration(),
			Uid: onA.GetUid()}); err == nil {
			t.Fatalf("%s: a has claimed what b runs", name)
		}
	}
	if state.GetWaiting() || state.GetConflicts() > 0 {
		t.Fatalf("%s: %v", name, state)
	}
	for vm, want := range map[*nodev1.VM]*nodev1.Record{web: onB, other: stays} {
		got, err := r.memory.Load(t.Context(), vm, transition.Asked{})
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got.Record.GetOwner(), want.GetOwner()) || got.Record.GetGeneration() != want.GetGeneration() {
			t.Errorf("%s: %v, want %v", name, got.Record, want)
		}
	}
	return d
}
