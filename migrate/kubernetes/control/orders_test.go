package control

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/moves"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// told is a node that hears a word.
type told struct {
	nodev1.PeerService
	node string
	got  *nodev1.PeerTellRequest
	err  error
}

func (p *told) Peer(node string) (nodev1.PeerService, error) { p.node = node; return p, nil }

func (p *told) Node(string) (*nodev1.NodeInfo, error) { return nil, errdefs.ErrNotFound }

func (p *told) Tell(_ context.Context, r *nodev1.PeerTellRequest) (*machinev1.TellResponse, error) {
	p.got = r
	return &machinev1.TellResponse{}, p.err
}

// A workload is told at the node that the record names, under the record's generation: a node that has lost the VM
// since refuses. What the node answers keeps its class.
func TestTellsAtTheOwner(t *testing.T) {
	p := &told{}
	word := operator.Told{Name: "nightly", Operation: "s1", Digest: "sha256:1", Record: &nodev1.Record{Generation: 3,
		Vm: &nodev1.VM{Namespace: "k8s.io", Id: "ns.vm"}, Owner: &nodev1.Owner{Node: "b"}}}
	if err := (Orders{Peers: p}).Tell(t.Context(), word); err != nil || p.node != "b" {
		t.Fatalf("node %q: %v", p.node, err)
	}
	want := &nodev1.PeerTellRequest{Vm: word.Record.GetVm(), Tell: &machinev1.TellRequest{Snapshot: "nightly",
		Digest: "sha256:1", Ref: &machinev1.Ref{Operation: "s1", Generation: 3}}}
	if !proto.Equal(p.got, want) {
		t.Errorf("asked %v", p.got)
	}
	p.err = errdefs.ErrFailedPrecondition
	if err := (Orders{Peers: p}).Tell(t.Context(), word); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("refused: %v", err)
	}
	if err := new(Leader).Tell(t.Context(), word); !errdefs.IsUnavailable(err) {
		t.Errorf("without a leader: %v", err)
	}
}

// beating is a node that sends heartbeats.
type beating struct{ told }

func (*beating) Node(name string) (*nodev1.NodeInfo, error) {
	return &nodev1.NodeInfo{Name: name, Up: true}, nil
}

// No VM is given up with a node that sends heartbeats.
func TestGivesNothingUpAtANodeThatAnswers(t *testing.T) {
	rec := &nodev1.Record{Owner: &nodev1.Owner{Node: "b"}}
	if err := (Orders{Peers: &beating{}}).GiveUp(t.Context(), rec, nil); !errors.Is(err, operator.ErrNodeAnswers) ||
		!errdefs.IsFailedPrecondition(err) {
		t.Errorf("answered %v", err)
	}
}

// waking notes the wakes that are ordered, and what is asked for a snapshot.
type waking struct {
	Engine
	woken []*nodev1.WakeOrder
	asked []*nodev1.RecoverRequest
}

func (w *waking) WakePlaced(_ context.Context, o *nodev1.WakeOrder) (*nodev1.StatusResponse, error) {
	w.woken = append(w.woken, o)
	return &nodev1.StatusResponse{}, nil
}

func (w *waking) restore(_ context.Context, r *nodev1.RecoverRequest) (*nodev1.RecoverResponse, error) {
	w.asked = append(w.asked, r)
	return &nodev1.RecoverResponse{Digest: "sha256:1"}, nil
}

// A source that says twice that it has nothing of the VM holds nothing newer than the snapshot, which is woken. One
// that does not answer, or holds something else, may have it.
func TestRecoversWithoutItsSource(t *testing.T) {
	rec := &nodev1.Record{Generation: 4, Vm: &nodev1.VM{Namespace: "k8s.io", Id: "ns.vm"}, Owner: &nodev1.Owner{Node: "b"},
		Snapshots: []*nodev1.SnapshotRef{{Digest: "sha256:1"}}, Operation: &nodev1.Operation{Id: "m", Source: "a",
			Destination: "b", Kind: nodev1.Kind_KIND_MIGRATE, Phase: nodev1.Phase_PHASE_COMMITTED, Digest: "stream:1"}}
	nothing := fmt.Errorf("recover: %w", moves.ErrNothingHeld)
	for name, test := range map[string]struct {
		answers []error
		woken   int
	}{
		"it has nothing":           {[]error{nothing, nothing, nil}, 1},
		"it has it, a little late": {[]error{nothing, nil}, 0},
		"it says no more":          {[]error{nothing, errdefs.ErrUnavailable}, 0},
		"it does not answer":       {[]error{errdefs.ErrUnavailable}, 0},
		"it holds something else":  {[]error{errdefs.ErrDataLoss}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, left := &waking{}, test.answers
				restores := func(ctx context.Context, r *nodev1.RecoverRequest) (*nodev1.RecoverResponse, error) {
					err := left[0]
					left = left[1:]
					if r.GetFromSource() != (len(left) > 0 || test.woken == 0) {
						t.Errorf("asked %v", r)
					}
					resp, _ := w.restore(ctx, r)
					return resp, err
				}
				err := NewOrders(w, &told{}, restores, nil).Recover(t.Context(), operator.Order{Record: rec, FromSource: true})
				last := test.answers[len(test.answers)-1]
				if !errors.Is(err, last) || len(w.woken) != test.woken || len(left) > 0 {
					t.Errorf("woken %v: %v", w.woken, err)
				}
			})
		})
	}
}

// A VM whose live move has lost its destination goes on at the source by the order that says so, and is woken nowhere.
// Else a snapshot is woken, which is named: what the source holds is newer, and is given up by name alone.
func TestRecoversFromTheSource(t *testing.T) {
	rec := &nodev1.Record{Generation: 4, Vm: &nodev1.VM{Namespace: "k8s.io", Id: "ns.vm"}, Owner: &nodev1.Owner{Node: "b"},
		Snapshots: []*nodev1.SnapshotRef{{Digest: "sha256:1"}}, Operation: &nodev1.Operation{Id: "m", Source: "a",
			Destination: "b", Kind: nodev1.Kind_KIND_MIGRATE, Phase: nodev1.Phase_PHASE_COMMITTED, Digest: "stream:1"}}
	ask := func(fromSource bool) *waking {
		w := &waking{}
		o := NewOrders(w, &told{}, w.restore, nil)
		if err := o.Recover(t.Context(), operator.Order{Record: rec, FromSource: fromSource}); err != nil {
			t.Fatal(err)
		}
		return w
	}
	w := ask(true)
	want := &nodev1.RecoverRequest{Vm: rec.Vm, FromSource: true, Fenced: true, LostNode: "b", Generation: 4}
	if len(w.woken) > 0 || len(w.asked) != 1 || !proto.Equal(w.asked[0], want) {
		t.Errorf("from its source: asked %v, woken %v", w.asked, w.woken)
	}
	w = ask(false)
	want = &nodev1.RecoverRequest{Vm: rec.Vm, LostNode: "b", Generation: 4, Digest: "sha256:1"}
	if len(w.woken) != 1 || w.woken[0].GetWake().GetDigest() != "sha256:1" || len(w.asked) != 1 ||
		!proto.Equal(w.asked[0], want) {
		t.Errorf("from its snapshot: asked %v, woken %v", w.asked, w.woken)
	}
}
