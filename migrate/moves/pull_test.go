package moves

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// stand is what an engine works on in addition to the records: a containerd that starts what it is told to, and a
// store that has every snapshot.
type stand struct {
	engine.Tasks
	engine.Snapshots
	engine.Observer
	engine.Machines
	created chan string // operations
}

func (s stand) Create(_ context.Context, _ *nodev1.VM, order engine.Restore) error {
	s.created <- order.Intent.Operation
	return nil
}
func (stand) Start(context.Context, *nodev1.VM) error                    { return nil }
func (stand) Running(context.Context, *nodev1.VM) (bool, error)          { return true, nil }
func (stand) Exists(context.Context, string, string) (bool, error)       { return true, nil }
func (stand) Event(context.Context, engine.Event)                        {}
func (stand) Reaches(context.Context, *nodev1.SnapshotRef) (bool, error) { return false, nil }

// driver is a node as the controller reaches it, with a real engine on the records as that node sees
// them. deaf, it takes no order.
type driver struct {
	nodev1.PeerService
	*engine.Engine
	deaf bool
}

func (d *driver) Query(context.Context, *nodev1.PeerRef) (*nodev1.PeerState, error) {
	return &nodev1.PeerState{}, nil
}

func (d *driver) Check(context.Context, *nodev1.PeerCheckRequest) (*nodev1.PeerCheckResponse, error) {
	return &nodev1.PeerCheckResponse{}, nil
}

func (d *driver) Wake(ctx context.Context, req *nodev1.WakeRequest) (*nodev1.StatusResponse, error) {
	if d.deaf {
		return nil, &engine.LinkError{Node: "rogue", Err: errdefs.ErrUnavailable}
	}
	return d.Engine.Wake(ctx, req)
}

func (d *driver) Hibernate(ctx context.Context, req *nodev1.HibernateRequest) (*nodev1.StatusResponse, error) {
	return d.Engine.Hibernate(ctx, req)
}

func (d *driver) Checkpoint(ctx context.Context, req *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error) {
	return d.Engine.Checkpoint(ctx, req)
}

// driven is an arena under move.pull = "controller" whose controller reaches the rogue's engine.
func driven(t *testing.T) (*arena, *driver, stand) {
	t.Helper()
	a := newArena(t, controller.Policy{Repositories: []string{"reg/vms"}, Pull: controller.PullController})
	s := stand{created: make(chan string, 8)}
	parts := engine.Parts{Records: a.seen, Tasks: s, Snapshots: s, Observer: s, Machines: s, Events: s}
	e := engine.New(parts, engine.Options{Node: "rogue", Repository: func(rec *nodev1.Record) string {
		return "reg/vms/" + rec.GetUid()
	}})
	t.Cleanup(e.Close)
	d := &driver{Engine: e}
	a.peers = map[string]nodev1.PeerService{"rogue": d}
	return a, d, s
}

// settles waits until a VM has a node and nothing under way.
func (a *arena) settles(t *testing.T, id string) *nodev1.Record {
	t.Helper()
	for {
		rec, err := controller.New(a.store).Get(t.Context(), &nodev1.GetRequest{Vm: named(id)})
		if err != nil {
			t.Fatal(err)
		}
		if rec.GetOwner().GetNode() != "" && rec.GetOperation() == nil {
			return rec
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Under move.pull = "controller" a node cannot open a wake of another node's VM. It drives one that the controller
// has opened for it, over its own certificate, to the end. It does so also if it heard the order only from the
// record.
func TestControllerOpensAndANodeDrives(t *testing.T) {
	for name, deaf := range map[string]bool{"told": false, "the order was lost": true} {
		t.Run(name, func(t *testing.T) {
			a, d, s := driven(t)
			d.deaf = deaf
			if _, err := d.Engine.Wake(t.Context(), &nodev1.WakeRequest{Vm: named("sleeps")}); !errdefs.IsPermissionDenied(err) {
				t.Fatalf("by itself: %v", err)
			}
			status, err := a.moves.Wake(t.Context(),
				&nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Vm: named("sleeps"), Operation: "w"}, On: "rogue"})
			if op := status.GetOperation(); err != nil || op.GetId() != "w" || op.GetDestination() != "rogue" {
				t.Fatalf("%v, %v", status, err)
			}
			if deaf {
				if err := d.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			rec := a.settles(t, "sleeps")
			if rec.GetOwner().GetNode() != "rogue" || rec.GetGeneration() != 3 || rec.GetHome() != "rogue" {
				t.Errorf("%v", rec)
			}
			if op := <-s.created; op != "w" || len(s.created) != 0 {
				t.Errorf("created by %q, and %d more", op, len(s.created))
			}
			if again, err := a.moves.Wake(t.Context(),
				&nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Vm: named("sleeps"), Operation: "w"}, On: "rogue"}); err != nil ||
				again.GetOperation().GetId() != "w" {
				t.Errorf("once more: %v, %v", again, err)
			}
		})
	}
}

// A VM whose record names a node that never existed wakes from its snapshot by force, on the controller's host or
// on another node. The order comes from the controller's host; a node cannot give it for itself.
func TestForcedWakeFromANodeThatNeverWas(t *testing.T) {
	ownedByAbsentNode := func(t *testing.T, st store.Store) {
		t.Helper()
		rec, err := st.Load(t.Context(), named("sleeps"), transition.Asked{})
		if err != nil {
			t.Fatal(err)
		}
		was := rec.Record.GetVersion()
		rec.Record.Owner, rec.Record.Home = &nodev1.Owner{Node: "absent"}, "absent"
		if _, err := st.Apply(t.Context(), named("sleeps"), was, transition.Change{Record: rec.Record}); err != nil {
			t.Fatal(err)
		}
	}
	recover := &nodev1.RecoverRequest{Vm: named("sleeps"), To: "rogue", Fenced: true, LostNode: "absent"}
	force := &nodev1.WakeRequest{Vm: named("sleeps"), Digest: dig("sleeps"), Force: true, LostNode: "absent"}
	t.Run("another node", func(t *testing.T) {
		a, d, _ := driven(t)
		ownedByAbsentNode(t, a.store)
		if _, err := d.Engine.Wake(t.Context(), force); !errdefs.IsPermissionDenied(err) {
			t.Errorf("a node by itself: %v", err)
		}
		if err := ask(t.Context(), a.rogue, "Moves.Recover", recover); !errdefs.IsPermissionDenied(err) {
			t.Errorf("a node's own order: %v", err)
		}
		if _, err := a.moves.Recover(t.Context(), recover); err != nil {
			t.Fatal(err)
		}
		if rec := a.settles(t, "sleeps"); rec.GetOwner().GetNode() != "rogue" || rec.GetGeneration() != 3 {
			t.Errorf("%v", rec)
		}
	})
	t.Run("the controller's host", func(t *testing.T) {
		a, _, s := driven(t)
		ownedByAbsentNode(t, a.store)
		parts := engine.Parts{Records: controller.New(a.store).Under(a.policy), Tasks: s, Snapshots: s, Observer: s,
			Machines: s, Events: s}
		e := engine.New(parts, engine.Options{Node: "first", Repository: func(rec *nodev1.Record) string {
			return rec.GetRepository()
		}})
		t.Cleanup(e.Close)
		if _, err := e.Wake(t.Context(), force); err != nil {
			t.Fatal(err)
		}
		if rec := a.settles(t, "sleeps"); rec.GetOwner().GetNode() != "first" || rec.GetGeneration() != 3 {
			t.Errorf("%v", rec)
		}
	})
}
