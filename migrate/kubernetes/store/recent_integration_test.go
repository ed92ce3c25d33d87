//go:build integration

package store_test

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// requests notes what is asked of an API server.
type requests struct {
	next http.RoundTripper
	mu   sync.Mutex
	all  []string
}

func (r *requests) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	r.all = append(r.all, req.Method)
	r.mu.Unlock()
	return r.next.RoundTrip(req)
}

func (r *requests) wrap(next http.RoundTripper) http.RoundTripper { r.next = next; return r }

// sending is a VM whose live move is about to stop it. It answers its generation.
func sending(t *testing.T, svc *controller.Service, vm *nodev1.VM) uint64 {
	t.Helper()
	if _, err := svc.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vm}); err != nil {
		t.Fatal(err)
	}
	rec, err := svc.Own(t.Context(), &nodev1.OwnRequest{Vm: vm, Node: "src"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = svc.Open(t.Context(), &nodev1.OpenRequest{Vm: vm, Operation: &nodev1.Operation{Id: "m", Attempt: 1,
		Kind: nodev1.Kind_KIND_MIGRATE, Mode: "live", Source: "src", Destination: "dest", Generation: rec.GetGeneration()}})
	if err != nil {
		t.Fatal(err)
	}
	for _, phase := range []nodev1.Phase{nodev1.Phase_PHASE_PREPARING, nodev1.Phase_PHASE_TRANSFERRING} {
		if _, err := svc.Advance(t.Context(), advance(vm, rec.GetGeneration(), phase)); err != nil {
			t.Fatal(err)
		}
	}
	return rec.GetGeneration()
}

func advance(vm *nodev1.VM, generation uint64, phase nodev1.Phase) *nodev1.AdvanceRequest {
	req := &nodev1.AdvanceRequest{Vm: vm, Operation: "m", Attempt: 1, Generation: generation, Phase: phase}
	if phase == nodev1.Phase_PHASE_SWITCHING {
		req.Digest = "stream:1"
	}
	return req
}

// A VM that is moved live stands still for two requests to the API server. In addition to the two writes, its driver
// and its destination read the record.
func TestMoveIsTwoRequests(t *testing.T) {
	asked := &requests{}
	st, _ := open(t, asked.wrap)
	svc, vm := controller.New(st), &nodev1.VM{Namespace: "k8s.io", Id: "default.vm"}
	gen := sending(t, svc, vm)
	asked.all = nil
	read := func(want nodev1.Phase) {
		t.Helper()
		rec, err := svc.Get(t.Context(), &nodev1.GetRequest{Vm: vm, Recent: true})
		if err != nil || rec.GetOperation().GetPhase() != want {
			t.Errorf("read %v, %v, want %s", rec.GetOperation(), err, want)
		}
	}
	if _, err := svc.Advance(t.Context(), advance(vm, gen, nodev1.Phase_PHASE_SWITCHING)); err != nil {
		t.Fatal(err)
	}
	read(nodev1.Phase_PHASE_SWITCHING)
	receipt := record.Receipt{Operation: "m", Attempt: 1, Generation: gen, Digest: "stream:1", Stopped: true}
	rec, err := svc.Commit(t.Context(), &nodev1.CommitRequest{Vm: vm, Operation: "m", Attempt: 1, Generation: gen,
		Owner: &nodev1.Owner{Node: "dest"}, Receipt: receipt.String()})
	if err != nil || rec.GetOwner().GetNode() != "dest" {
		t.Fatalf("commit: %v, %v", rec, err)
	}
	read(nodev1.Phase_PHASE_COMMITTED) // the driver
	read(nodev1.Phase_PHASE_COMMITTED) // the destination
	if want := []string{http.MethodPut, http.MethodPut}; !slices.Equal(asked.all, want) {
		t.Errorf("requests %v, want %v", asked.all, want)
	}
	stored, err := st.Load(t.Context(), vm, transition.Asked{})
	if err != nil || stored.Record.GetVersion() != rec.GetVersion() || stored.Record.GetOwner().GetNode() != "dest" {
		t.Errorf("the API server has %v, %v", stored.Record, err)
	}
}

// What a store wrote last is no way past another writer, nor past a new state of the store.
func TestRecentObjectIsNoProof(t *testing.T) {
	vm := &nodev1.VM{Namespace: "k8s.io", Id: "default.vm"}
	for name, between := range map[string]func(ctx context.Context, other *store.Store, gen uint64) error{
		"another writer": func(ctx context.Context, other *store.Store, gen uint64) error {
			_, err := controller.New(other).Advance(ctx, advance(vm, gen, nodev1.Phase_PHASE_ABORTING))
			return err
		},
		"another state": func(ctx context.Context, other *store.Store, _ uint64) error {
			state, err := other.State(ctx)
			if err != nil {
				return err
			}
			state.Incarnation++
			_, err = other.SetState(ctx, state.GetVersion(), state)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			st, again := open(t, nil)
			gen := sending(t, controller.New(st), vm)
			seen, err := st.Load(t.Context(), vm, transition.Asked{Operation: "m"})
			if err != nil {
				t.Fatal(err)
			}
			change, err := transition.Advance(seen, advance(vm, gen, nodev1.Phase_PHASE_SWITCHING), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			change.Under = seen.Store.GetVersion()
			if err := between(t.Context(), again(), gen); err != nil {
				t.Fatal(err)
			}
			if rec, err := st.Apply(t.Context(), vm, seen.Record.GetVersion(), change); !errdefs.IsConflict(err) {
				t.Errorf("applied: %v, %v", rec.GetOperation(), err)
			}
		})
	}
}
