package engine

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// placeHistories are played by a test that is not told how many.
const placeHistories = 60

var placeRuns = flag.Uint64("sim.places", placeHistories, "histories of a pod that is placed later to play")

// Histories of a pod whose moves and wakes are opened without a destination. Two controllers make pods for it, and a
// scheduler binds them. A pod is deleted by force and made again under its name, while its node starts the old one.
// What the controllers know of pods is old by the time that the records hear it.

// simPlaces are the pods of all operations.
type simPlaces struct {
	s    *simulation
	pods []*placedPod
	ids  int
}

type placedPod struct {
	id, operation, node string
	attempt             uint32
	gone                bool
}

// find answers the pod that has an attempt's name; nil: there is none.
func (p *simPlaces) find(op *nodev1.Operation) *placedPod {
	for _, pod := range p.pods {
		if pod.operation == op.GetId() && pod.attempt == op.GetAttempt() && !pod.gone {
			return pod
		}
	}
	return nil
}

func (p *simPlaces) Makes(context.Context, *nodev1.Record) (bool, error) { return true, nil }

func (p *simPlaces) Place(_ context.Context, rec *nodev1.Record) (node, place string, err error) {
	p.s.yield()
	if p.s.chance(5) {
		return "", "", fmt.Errorf("pod: %w", errdefs.ErrUnavailable)
	}
	op := rec.GetOperation()
	pod := p.find(op)
	if pod == nil {
		p.ids++
		pod = &placedPod{id: fmt.Sprintf("pod%d", p.ids), operation: op.GetId(), attempt: op.GetAttempt()}
		p.pods = append(p.pods, pod)
	}
	p.s.yield()
	if pod.node == "" && p.s.rng.IntN(3) == 0 {
		if pod.node = op.GetWish(); pod.node == "" {
			pod.node = pick(&p.s.schedule, simNodes) // its source too: the records refuse that
		}
	}
	if pod.node == "" {
		return "", "", NotYet("no node yet")
	}
	node, place = pod.node, pod.id
	if p.s.faults && p.s.rng.IntN(6) == 0 {
		pod.gone = true // by force
	}
	p.s.yield()
	return node, place, nil
}

func (p *simPlaces) Settled(context.Context, *nodev1.Record) error {
	p.s.yield()
	if p.s.rng.IntN(2) == 0 {
		return NotYet("not ready")
	}
	return nil
}

func (p *simPlaces) Vacate(_ context.Context, rec *nodev1.Record, attempt uint32) error {
	p.s.yield()
	if p.s.chance(5) {
		return fmt.Errorf("pod: %w", errdefs.ErrUnavailable)
	}
	for _, pod := range p.pods {
		pod.gone = pod.gone || pod.operation == rec.GetOperation().GetId() && pod.attempt == attempt
	}
	return nil
}

// at is a pod that a kubelet starts on its node: of any attempt, and deleted ones that it has not heard of. Empty: one
// that has nothing to do with the VM.
func (p *simPlaces) at(node string, op *nodev1.Operation) string {
	var all []string
	for _, pod := range p.pods {
		if pod.node == node {
			all = append(all, pod.id)
		}
	}
	switch {
	case op.GetPlace() != "" && op.GetDestination() == node && p.s.rng.IntN(4) > 0:
		return op.GetPlace()
	case len(all) == 0 || p.s.rng.IntN(8) == 0:
		return ""
	}
	return pick(&p.s.schedule, all)
}

// fits is what the shim of a pod asks the record.
func (k simTasks) fits(rec *nodev1.Record, place string) error {
	op := rec.GetOperation()
	if !op.GetByPlace() {
		return nil
	}
	intent := record.Intent{Operation: op.GetId(), Attempt: op.GetAttempt(), Digest: op.GetDigest(), Place: place}
	if op.GetKind() == nodev1.Kind_KIND_MIGRATE {
		intent.Digest, intent.Stream = "", &machinev1.Stream{Generation: rec.GetGeneration()}
	}
	_, err := record.Decide(rec, k.name, intent)
	return err
}

// inPlace watches over a VM that begins to run: in the pod that its record names, if it names one.
func (n *simNode) inPlace(gen uint64) {
	if n.rounds == nil || n.rounds.places == nil || n.pod.sandbox == nil {
		return
	}
	rec, err := n.records.Get(context.Background(), &nodev1.GetRequest{Vm: vm})
	if err != nil || rec.GetOwner().GetNode() != n.name || rec.GetGeneration() != gen || rec.GetPlace() == "" {
		return
	}
	if rec.GetPlace() != n.pod.sandbox.place {
		n.violated("the VM runs in pod %q of %s, and its record names %q", n.pod.sandbox.place, n.name, rec.GetPlace())
	}
	n.trace = append(n.trace, "it runs in the place of its record")
}

// unplaced makes an operation one that is placed later.
func (s *simulation) unplaced(op *nodev1.Operation) *nodev1.Operation {
	if s.rounds == nil || s.rounds.places == nil {
		return op
	}
	op.ByPlace, op.Wish, op.Destination = true, op.GetDestination(), ""
	if s.rng.IntN(2) == 0 {
		op.Wish = ""
	}
	return op
}

// wakeSomewhere orders a wake that is placed later.
func (s *simulation) wakeSomewhere(ctx context.Context, rec *nodev1.Record) {
	if s.rounds == nil || s.rounds.places == nil || rec.GetOwner().GetDigest() == "" || !s.rounds.noticed() ||
		s.rng.IntN(3) > 0 {
		return
	}
	op := s.unplaced(&nodev1.Operation{Id: s.rounds.id("w"), Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Managed: true,
		Generation: rec.GetGeneration(), Destination: pick(&s.schedule, simNodes)})
	if _, err := s.records.Open(ctx, &nodev1.OpenRequest{Vm: vm, Operation: op}); err == nil {
		s.trace = append(s.trace, op.GetId()+": a wake waits for a place")
		if rec.GetOperation() != nil {
			s.trace = append(s.trace, op.GetId()+": it has closed a hibernate")
		}
	}
}

// Place may be held on its way: it lands when the attempt is over, or has another place.
func (r simRecords) Place(ctx context.Context, req *nodev1.PlaceRequest) (*nodev1.Record, error) {
	do := func(ctx context.Context, req *nodev1.PlaceRequest) (*nodev1.Record, error) {
		rec, err := r.RecordsService.Place(ctx, req)
		switch {
		case err == nil:
			r.s.trace = append(r.s.trace, fmt.Sprintf("%s/%d goes to %s on %s", req.GetOperation(), req.GetAttempt(),
				req.GetPlace(), req.GetNode()))
		case errdefs.IsFailedPrecondition(err) || errdefs.IsAborted(err):
			r.s.trace = append(r.s.trace, "a place is refused")
		}
		return rec, err
	}
	if r.s.chance(60) {
		r.s.late = append(r.s.late, func() {
			r.s.spawn("late Place", "wire", func() { _, _ = do(context.Background(), req) })
		})
		return nil, fmt.Errorf("records: %w", errdefs.ErrUnavailable)
	}
	return stored(&r.s.schedule, ctx, do, req)
}

func (l simLink) Wake(_ context.Context, r *nodev1.WakeRequest) (*nodev1.StatusResponse, error) {
	return over(l, "wake", func() (*nodev1.StatusResponse, error) {
		if l.n.round == nil {
			return nil, errors.ErrUnsupported
		}
		return l.n.round.engine.Wake(impatient(), r)
	})
}

// playPlaces is playPods of a pod that is placed later.
func playPlaces(seed uint64) *simulation {
	s := newSimRounds(seed)
	s.rounds.pods, s.rounds.places = true, &simPlaces{s: s}
	s.rounds.live()
	s.end()
	return s
}

// TestSimulatedPlaces is TestSimulatedPods of a pod that is placed later: it never runs in a pod that its record does
// not name, whatever scheduler, kubelets and controllers do, and when.
func TestSimulatedPlaces(t *testing.T) {
	before := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	defer slog.SetDefault(before)
	if *simSeed != 0 {
		s := playPlaces(*simSeed)
		t.Logf("%s\nbroken: %q", strings.Join(s.trace, "\n"), s.broken)
		return
	}
	runs, seen := *placeRuns, map[string]int{}
	if raced {
		runs = min(runs, 10)
	}
	for seed := uint64(1); seed <= runs; seed++ {
		s := playPlaces(seed)
		if len(s.broken) > 0 && !(*safetyOnly && strings.HasPrefix(s.broken[0], "I4")) {
			t.Fatalf("seed %d: %q", seed, s.broken)
		}
		told := strings.Join(s.trace, "\n")
		for what, text := range map[string]string{"placed": " goes to pod", "refused": "a place is refused",
			"ran": "it runs in the place", "wakes": "waits for a place", "moved": "is released by op",
			"closed": "it has closed a hibernate"} {
			seen[what] += strings.Count(told, text)
		}
	}
	t.Logf("%d histories: %v", runs, seen)
	if n := int(runs); !raced && (seen["placed"] < n || seen["refused"] < n/4 || seen["ran"] < n/10 ||
		seen["wakes"] < n/10 || seen["moved"] < n/30 || seen["closed"] < n/30) {
		t.Errorf("too little happens: %v", seen)
	}
}
