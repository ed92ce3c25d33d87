package moves

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// holder is a node, and what it has of the VM.
type holder struct {
	nodev1.PeerService
	state    *machinev1.QueryResponse // nil: nothing
	silent   bool
	reverted uint64
	woken    *nodev1.WakeRequest
	records  nodev1.RecordsService
}

func (h *holder) Query(context.Context, *nodev1.PeerRef) (*nodev1.PeerState, error) {
	if h.silent {
		return nil, errdefs.ErrUnavailable
	}
	return &nodev1.PeerState{Known: h.state != nil, Machine: h.state}, nil
}

func (h *holder) Discard(context.Context, *nodev1.PeerRef) (*nodev1.PeerState, error) {
	h.state = nil
	return &nodev1.PeerState{}, nil
}

func (h *holder) Revert(_ context.Context, req *nodev1.PeerRevertRequest) (*machinev1.RevertResponse, error) {
	h.reverted = req.GetOwnerGeneration()
	return &machinev1.RevertResponse{}, nil
}

func (h *holder) Wake(ctx context.Context, req *nodev1.WakeRequest) (*nodev1.StatusResponse, error) {
	h.woken = req
	op, err := h.records.Operation(ctx, &nodev1.OperationRequest{Id: req.GetOperation()})
	return &nodev1.StatusResponse{Operation: op.GetOperation()}, err
}

// cluster of a, which sent the VM, and b, which has lost it after the commit.
type lostCluster struct {
	*Service
	a, b *holder
	vm   *nodev1.VM
}

func newLost(t *testing.T) *lostCluster {
	t.Helper()
	st, members := newCluster(t)
	records, ctx := controller.New(st), t.Context()
	c := &lostCluster{vm: &nodev1.VM{Namespace: "default", Id: "web"}, b: &holder{records: records}}
	c.a = &holder{state: &machinev1.QueryResponse{Record: "PREPARED", Ref: &machinev1.Ref{Operation: "m", Attempt: 1,
		Generation: 1}}}
	c.Service = &Service{Records: records, Engine: orders{records}, Cluster: members,
		Peer: func(node string) (nodev1.PeerService, error) {
			return map[string]*holder{"a": c.a, "b": c.b}[node], nil
		}}
	digest := record.StreamPrefix + "aa"
	receipt := record.Receipt{Operation: "m", Attempt: 1, Generation: 1, Digest: digest, Stopped: true,
		StopAt: time.Now().Add(-time.Minute).UnixNano()}
	op := &nodev1.Operation{Id: "m", Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 1, Source: "a", Destination: "b",
		Generation: 1}
	_, err := records.Ensure(ctx, &nodev1.EnsureRequest{Vm: c.vm})
	if err == nil {
		_, err = records.Own(ctx, &nodev1.OwnRequest{Vm: c.vm, Node: "a"})
	}
	if err == nil {
		_, err = records.Open(ctx, &nodev1.OpenRequest{Vm: c.vm, Operation: op})
	}
	if err == nil {
		_, err = records.Advance(ctx, &nodev1.AdvanceRequest{Vm: c.vm, Operation: "m", Attempt: 1, Generation: 1,
			Phase: nodev1.Phase_PHASE_SWITCHING, Digest: digest, Receipt: receipt.String()})
	}
	if err == nil {
		_, err = records.Commit(ctx, &nodev1.CommitRequest{Vm: c.vm, Operation: "m", Attempt: 1, Generation: 1,
			Owner: &nodev1.Owner{Node: "b"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *lostCluster) lose(t *testing.T) {
	t.Helper()
	_, err := c.Records.Finish(t.Context(), &nodev1.FinishRequest{Vm: c.vm, Operation: "m", Attempt: 1, Generation: 1,
		Phase: nodev1.Phase_PHASE_LOST_AT_DEST})
	if err != nil {
		t.Fatal(err)
	}
}

func (c *lostCluster) up(t *testing.T, node string) {
	t.Helper()
	if _, err := c.Cluster.Announce(t.Context(), &nodev1.NodeInfo{Name: node}); err != nil {
		t.Fatal(err)
	}
}

// quiet is a cluster in which no node was heard lately.
type quiet struct{ Cluster }

func (quiet) Nodes() []*nodev1.NodeInfo { return nil }

func (quiet) Node(string) (*nodev1.NodeInfo, error) { return nil, errdefs.ErrNotFound }

// A VM that a live move has lost is taken back from its source, once it is sure that its destination runs nothing:
// by its own word, or by that of the caller who orders it.
func TestRecoverFromSource(t *testing.T) {
	back := &nodev1.RecoverRequest{FromSource: true, Fenced: true}
	for name, tt := range map[string]struct {
		before  func(*lostCluster)
		refused func(error) bool
	}{
		"lost, and it says so": {func(c *lostCluster) { c.lose(t); c.up(t, "b") }, nil},
		"lost, its record is not OWN": {func(c *lostCluster) {
			c.lose(t)
			c.b.state = &machinev1.QueryResponse{Record: "READY"}
		}, nil},
		"gone, and called fenced": {func(c *lostCluster) { c.b.silent = true }, nil},
		"it runs": {func(c *lostCluster) {
			c.b.state = &machinev1.QueryResponse{Record: "OWN", State: "running"}
		}, errdefs.IsFailedPrecondition},
		"up, and does not answer": {func(c *lostCluster) {
			c.lose(t)
			c.up(t, "b")
			c.b.silent = true
		}, errdefs.IsUnavailable},
		"the source has it no more": {func(c *lostCluster) { c.lose(t); c.a.state = nil }, func(err error) bool {
			return errors.Is(err, ErrNothingHeld) && errdefs.IsDataLoss(err)
		}},
		"the source holds something else": {func(c *lostCluster) {
			c.lose(t)
			c.a.state.Ref.Operation = "other"
		}, func(err error) bool { return errdefs.IsDataLoss(err) && !errors.Is(err, ErrNothingHeld) }},
	} {
		t.Run(name, func(t *testing.T) {
			c := newLost(t)
			tt.before(c)
			back.Vm = c.vm
			ask := &nodev1.RecoverRequest{Vm: c.vm, FromSource: true}
			if resp, err := c.Recover(t.Context(), ask); c.a.state != nil && c.a.state.Ref.Operation == "m" &&
				(err != nil || resp.GetSource() != "a" || c.a.reverted != 0) {
				t.Fatalf("what would be done: %v, %v", resp, err)
			}
			_, err := c.Recover(t.Context(), back)
			rec, rerr := c.Records.Get(t.Context(), &nodev1.GetRequest{Vm: c.vm})
			if rerr != nil {
				t.Fatal(rerr)
			}
			if tt.refused != nil {
				if !tt.refused(err) || c.a.reverted != 0 || rec.GetOwner().GetNode() != "b" {
					t.Errorf("%v; reverted under %d, record %v", err, c.a.reverted, rec)
				}
				return
			}
			if err != nil || c.a.reverted != 3 || rec.GetGeneration() != 3 || rec.GetOwner().GetNode() != "a" {
				t.Errorf("%v; reverted under %d, record %v", err, c.a.reverted, rec)
			}
		})
	}
	c := newLost(t)
	c.lose(t)
	back.Vm = c.vm
	if _, err := c.Recover(controller.WithPeer(t.Context(), "c"), back); !errdefs.IsPermissionDenied(err) {
		t.Errorf("ordered by a node that has no part in it: %v", err)
	}
	for name, of := range map[string]*nodev1.RecoverRequest{"another node": {LostNode: "c"},
		"an owner before": {LostNode: "b", Generation: 1}} {
		of.Vm, of.FromSource, of.Fenced = c.vm, true, true
		if _, err := c.Recover(t.Context(), of); !errdefs.IsFailedPrecondition(err) || c.a.reverted != 0 {
			t.Errorf("who vouches for %s: %v", name, err)
		}
	}
	if _, err := c.Recover(t.Context(), &nodev1.RecoverRequest{Vm: c.vm, To: "a",
		Fenced: true}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("an older snapshot in place of what the source holds: %v", err)
	}
}

// A store that was put back does not know where the VM went. No node that is up may have it, or say nothing of it.
func TestRecoverFromAnUnknownDestination(t *testing.T) {
	c := newLost(t)
	c.up(t, "b")
	for name, test := range map[string]struct {
		has     *machinev1.QueryResponse
		silent  bool
		refused func(error) bool
	}{
		"nothing": {refused: func(err error) bool { return err == nil }},
		"it has ended": {has: &machinev1.QueryResponse{Record: "OWN", State: "stopped"},
			refused: func(err error) bool { return err == nil }},
		"it runs":   {has: &machinev1.QueryResponse{Record: "OWN", State: "running"}, refused: errdefs.IsFailedPrecondition},
		"no answer": {silent: true, refused: errdefs.IsUnavailable},
	} {
		c.b.state, c.b.silent = test.has, test.silent
		if err := c.fenced(t.Context(), &nodev1.PeerRef{Vm: c.vm}, "", "recover"); !test.refused(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A lost VM of which nothing is left has no owner: what the source holds is named first and can be taken back, and
// without that the snapshot that is left is.
func TestRecoverWithoutOwner(t *testing.T) {
	c := newLost(t)
	c.lose(t)
	if _, err := c.Records.Disown(t.Context(), &nodev1.DisownRequest{Vm: c.vm, Node: "b", Generation: 2}); err != nil {
		t.Fatal(err)
	}
	refused := func(says string) {
		t.Helper()
		_, err := c.Recover(t.Context(), &nodev1.RecoverRequest{Vm: c.vm, To: "b", Fenced: true})
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	refused("--from-source")
	if _, err := c.Recover(t.Context(), &nodev1.RecoverRequest{Vm: c.vm, FromSource: true, Fenced: true}); err != nil ||
		c.a.reverted != 4 {
		t.Errorf("taken back: %v, under %d", err, c.a.reverted)
	}

	c = newLost(t)
	c.sleepsLost(t)
	refused("godwit wake --digest sha256:bb --force")
}

// sleepsLost takes the VM of c to a wake that lost it, of which nothing is left.
func (c *lostCluster) sleepsLost(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	_, err := c.Records.Reclaim(ctx, &nodev1.ReclaimRequest{Vm: c.vm, Operation: "m", Generation: 2, LostNode: "b"})
	op := &nodev1.Operation{Id: "h", Kind: nodev1.Kind_KIND_HIBERNATE, Attempt: 1, Source: "a", Generation: 3}
	if err == nil {
		_, err = c.Records.Open(ctx, &nodev1.OpenRequest{Vm: c.vm, Operation: op})
	}
	if err == nil {
		receipt := record.Receipt{Operation: "h", Attempt: 1, Generation: 3, Digest: "sha256:bb", Stopped: true}
		_, err = c.Records.Advance(ctx, &nodev1.AdvanceRequest{Vm: c.vm, Operation: "h", Attempt: 1, Generation: 3,
			Phase: nodev1.Phase_PHASE_SWITCHING, Digest: "sha256:bb", Receipt: receipt.String()})
	}
	if err == nil {
		_, err = c.Records.Commit(ctx, &nodev1.CommitRequest{Vm: c.vm, Operation: "h", Attempt: 1, Generation: 3,
			Owner: &nodev1.Owner{Digest: "sha256:bb"}})
	}
	if err == nil {
		_, err = c.Records.Advance(ctx, &nodev1.AdvanceRequest{Vm: c.vm, Operation: "h", Attempt: 1, Generation: 3,
			Phase: nodev1.Phase_PHASE_CLEANING})
	}
	if err == nil {
		_, err = c.Records.Finish(ctx, &nodev1.FinishRequest{Vm: c.vm, Operation: "h", Attempt: 1, Generation: 3,
			Phase: nodev1.Phase_PHASE_SUCCEEDED})
	}
	w := &nodev1.Operation{Id: "w", Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Destination: "b", Generation: 4,
		Digest: "sha256:bb"}
	if err == nil {
		_, err = c.Records.Open(ctx, &nodev1.OpenRequest{Vm: c.vm, Operation: w})
	}
	if err == nil {
		_, err = c.Records.Advance(ctx, &nodev1.AdvanceRequest{Vm: c.vm, Operation: "w", Attempt: 1, Generation: 4,
			Phase: nodev1.Phase_PHASE_SWITCHING})
	}
	if err == nil {
		_, err = c.Records.Commit(ctx, &nodev1.CommitRequest{Vm: c.vm, Operation: "w", Attempt: 1, Generation: 4,
			Owner: &nodev1.Owner{Node: "b"}})
	}
	if err == nil {
		_, err = c.Records.Finish(ctx, &nodev1.FinishRequest{Vm: c.vm, Operation: "w", Attempt: 1, Generation: 4,
			Phase: nodev1.Phase_PHASE_LOST_AT_DEST})
	}
	if err == nil {
		_, err = c.Records.Disown(ctx, &nodev1.DisownRequest{Vm: c.vm, Node: "b", Generation: 5})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The controller opens the wake of a recovery: its destination may not call a node lost.
func TestRecoverOpensTheWake(t *testing.T) {
	c := newLost(t)
	c.asleep(t)
	ctx := t.Context()
	order := &nodev1.RecoverRequest{Vm: c.vm, To: "b", Fenced: true, Operation: "w"}
	c.b.silent = true
	if _, err := c.Recover(ctx, order); !errdefs.IsUnavailable(err) {
		t.Fatalf("it would not be driven: %v", err)
	}
	c.b.silent = false
	resp, err := c.Recover(controller.WithPeer(ctx, "b"), order)
	if err != nil || resp.GetDigest() != "sha256:aa" || resp.GetWake().GetOperation().GetDestination() != "b" {
		t.Fatalf("%v, %v", resp, err)
	}
	rec, err := c.Records.Get(ctx, &nodev1.GetRequest{Vm: c.vm})
	if w := c.b.woken; err != nil || w.GetOperation() != "w" || w.GetLostNode() != "" ||
		w.GetGeneration() != rec.GetGeneration() || w.GetUid() != rec.GetUid() {
		t.Errorf("ordered %v of %v, %v", w, rec, err)
	}
}

// asleep gives the VM of c a snapshot, on node a, at generation 3.
func (c *lostCluster) asleep(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	_, err := c.Records.Reclaim(ctx, &nodev1.ReclaimRequest{Vm: c.vm, Operation: "m", Generation: 2, LostNode: "b"})
	if err == nil {
		_, err = c.Records.Open(ctx,
			&nodev1.OpenRequest{Vm: c.vm, Operation: &nodev1.Operation{Id: "cp", Kind: nodev1.Kind_KIND_CHECKPOINT, Attempt: 1,
				Source: "a", Generation: 3}})
	}
	if err == nil {
		_, err = c.Records.Advance(ctx, &nodev1.AdvanceRequest{Vm: c.vm, Operation: "cp", Attempt: 1, Generation: 3,
			Phase: nodev1.Phase_PHASE_SWITCHING, Digest: "sha256:aa"})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Who has fenced a node gets a VM from that node, as it was before, or not at all.
func TestRecoverFromWhoWasFenced(t *testing.T) {
	c := newLost(t)
	c.asleep(t)
	for name, req := range map[string]*nodev1.RecoverRequest{
		"it went to another node": {LostNode: "c", Generation: 3},
		"it was there, and again": {LostNode: "a", Generation: 1},
	} {
		req.Vm, req.To, req.Fenced = c.vm, "b", true
		if _, err := c.Recover(t.Context(), req); !errdefs.IsFailedPrecondition(err) || c.b.woken != nil {
			t.Errorf("%s: %v, ordered %v", name, err, c.b.woken)
		}
	}
	if _, err := c.Recover(t.Context(), &nodev1.RecoverRequest{Vm: c.vm, To: "b", Fenced: true, LostNode: "a",
		Generation: 3}); err != nil || c.b.woken == nil {
		t.Errorf("as it was: %v", err)
	}
}

// A wake whose destination is gone ends with that node: the VM goes to a third one.
func TestRecoverFromAWakeThatIsLost(t *testing.T) {
	c := newLost(t)
	c.asleep(t)
	third := &holder{records: c.Records}
	known := c.Peer
	c.Peer = func(node string) (nodev1.PeerService, error) {
		if node == "c" {
			return third, nil
		}
		return known(node)
	}
	if _, err := c.Recover(t.Context(), &nodev1.RecoverRequest{Vm: c.vm, To: "b", Fenced: true,
		Operation: "w"}); err != nil {
		t.Fatal(err)
	}
	order := &nodev1.RecoverRequest{Vm: c.vm, To: "c", Fenced: true, Operation: "w2"}
	c.up(t, "b")
	if _, err := c.Recover(t.Context(), order); !errdefs.IsFailedPrecondition(err) || third.woken != nil {
		t.Fatalf("its destination answers: %v", err)
	}
	c.up(t, "c")
	if _, err := c.Cluster.Cordon(t.Context(), "c", false); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Recover(t.Context(), order); err == nil ||
		!strings.Contains(err.Error(), "cordoned (godwit uncordon c)") {
		t.Fatalf("to a node that takes none, which is said first: %v", err)
	}
	c.Cluster = quiet{c.Cluster} // silent again
	resp, err := c.Recover(t.Context(), order)
	if err != nil || resp.GetLostNode() != "b" || third.woken.GetOperation() != "w2" {
		t.Fatalf("%v, %v, ordered %v", resp, err, third.woken)
	}
	first, err := c.Records.Operation(t.Context(), &nodev1.OperationRequest{Id: "w"})
	if err != nil || first.GetOperation().GetPhase() != nodev1.Phase_PHASE_FAILED {
		t.Errorf("the wake before: %v, %v", first, err)
	}
}
