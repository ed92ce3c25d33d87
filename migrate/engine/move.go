package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Peers reaches the nodes of a move.
type Peers interface {
	// Peer answers the service of a node. Its errors are LinkErrors where the node itself
	// has not answered.
	Peer(node string) (nodev1.PeerService, error)
	// Node answers what is known of a node.
	Node(node string) (*nodev1.NodeInfo, error)
	Nodes() []*nodev1.NodeInfo
	// Drives reports whether this controller drives what that one has begun: one of
	// several takes over from one that is gone.
	Drives(controller string) bool
}

// LinkError says that a node did not answer: whether it did what it was asked is open.
type LinkError struct {
	Node string
	Err  error
}

func (e *LinkError) Error() string { return fmt.Sprintf("node %s does not answer: %v", e.Node, e.Err) }

// Unwrap gives the class.
func (e *LinkError) Unwrap() []error { return []error{errdefs.ErrUnavailable, e.Err} }

// move is driven by the controller: both nodes are asked, neither decides. Up to the
// commit the source has the VM, whatever becomes of the destination.
var move = map[nodev1.Phase]step{
	nodev1.Phase_PHASE_PENDING:      {name: "wait for a place", do: queue, patient: true},
	nodev1.Phase_PHASE_PREPARING:    {name: "check", do: preflight, patient: true},
	nodev1.Phase_PHASE_TRANSFERRING: {name: "transfer", do: transfer},
	nodev1.Phase_PHASE_SWITCHING:    {name: "switch", do: switchOver},
	nodev1.Phase_PHASE_COMMITTED:    {name: "run", do: runMoved},
	nodev1.Phase_PHASE_CLEANING:     {name: "release", do: releaseMoved},
	nodev1.Phase_PHASE_ABORTING:     {name: "give back", do: undoMove},
	nodev1.Phase_PHASE_REVERTING:    {name: "revert", do: revertMove},
}

func peerRef(op *nodev1.Operation) *nodev1.PeerRef {
	return &nodev1.PeerRef{Vm: op.GetVm(), Ref: ref(op)}
}

// ask makes one call to a node. A link that is down is tried again for as long as a daemon
// takes to come back: a restart is no failure. That counts from when it was down: a call may
// have run for long before.
func ask[Q, R any](ctx context.Context, c *core, node string, method func(nodev1.PeerService, context.Context, Q) (R,
	error), req Q) (resp R, err error) {
	var down time.Time // since when
	for {
		var peer nodev1.PeerService
		if peer, err = c.Peers.Peer(node); err == nil {
			resp, err = method(peer, ctx, req)
		}
		var link *LinkError
		if err == nil || !errors.As(err, &link) || ctx.Err() != nil {
			return resp, err
		}
		if down.IsZero() {
			down = time.Now()
		}
		if time.Since(down) > c.opts.Patience {
			return resp, err
		}
		select {
		case <-ctx.Done():
			return resp, errors.Join(ctx.Err(), err)
		case <-time.After(c.opts.RetryMin):
		}
	}
}

// preflight asks both nodes, before anything of the VM is touched, and decides
// what auto comes to.
func preflight(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	offer, err := ask(ctx, e.core, op.GetSource(), nodev1.PeerService.Offer, peerRef(op))
	if errdefs.IsNotImplemented(err) { // a shim of a build before: the restore itself will tell what does not fit
		offer, err = nil, nil
	}
	if err != nil {
		return err
	}
	mode, err := e.chooseMode(ctx, rec, offer)
	if err != nil {
		return err
	}
	req := &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_TRANSFERRING, Mode: mode}
	if mode == moves.ModeCold {
		no, err := e.unfit(ctx, rec, offer, false)
		if err != nil {
			return err
		}
		if no != "" {
			return fmt.Errorf("move VM %s: %s: %w", name(op.GetVm()), no, errdefs.ErrFailedPrecondition)
		}
		req.Repository = e.opts.Repository(rec)
		req.Tag = record.SnapshotTag(rec.GetGeneration(), op.GetId(), op.GetAttempt())
	}
	return e.advance(ctx, op, req)
}

// unfit says why the VM cannot go to its destination in this way; empty: it can.
func (e *Engine) unfit(ctx context.Context, rec *nodev1.Record, offer *machinev1.OfferResponse, live bool) (string,
	error) {
	op := rec.GetOperation()
	check := &nodev1.PeerCheckRequest{Vm: op.GetVm(), Source: op.GetSource(), Offer: offer, Live: live}
	switch {
	case live && offer == nil:
		return fmt.Sprintf("node %s cannot send it", op.GetSource()), nil
	case live && len(offer.GetObstacles()) > 0:
		return strings.Join(offer.GetObstacles(), "; "), nil
	case !live:
		if check.Repository = e.opts.Repository(rec); check.Repository == "" {
			return "the controller has no place for snapshots (registry.repository or registry.layout in its configuration)", nil
		}
		if err := e.Snapshots.Accepts(ctx, check.Repository); err != nil {
			return "", err
		}
	}
	resp, err := ask(ctx, e.core, op.GetDestination(), nodev1.PeerService.Check, check)
	if err != nil {
		return "", err
	}
	if all := resp.GetObstacles(); len(all) > 0 {
		return fmt.Sprintf("node %s: %s", op.GetDestination(), strings.Join(all, "; ")), nil
	}
	return "", nil
}

func transfer(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	send := sendCold
	if rec.GetOperation().GetMode() == moves.ModeLive {
		send = sendLive
	}
	bound, stop := e.watched(ctx, rec.GetOperation())
	defer stop()
	err := send(bound, e, rec)
	if err != nil && ctx.Err() == nil && bound.Err() != nil {
		return context.Cause(bound)
	}
	return err
}

// sendCold goes through the registry: the VM stands still from the end of its capture
// until the destination runs it.
func sendCold(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	if op.GetDigest() == "" {
		return captureAtSource(ctx, e, op)
	}
	_, err := ask(ctx, e.core, op.GetDestination(), nodev1.PeerService.Prepare, &nodev1.PeerPrepareRequest{
		Vm: op.GetVm(), Ref: ref(op), Digest: op.GetDigest(), Repository: op.GetRepository(), Stdio: op.GetStdio(),
	})
	if err != nil {
		return err
	}
	if r, err := record.ParseReceipt(op.GetReceipt()); err == nil && r.StopAt != 0 {
		if err := e.tooLong(op, sinceMS(r.StopAt, e.now())); err != nil {
			return err
		}
	}
	return e.advance(ctx, op, &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_SWITCHING})
}

// takesExecs reports whether execs go along with the VM: a destination of a build before
// would end them. An order to end them is obeyed.
func (e *Engine) takesExecs(op *nodev1.Operation) bool {
	n, err := e.Peers.Node(op.GetDestination())
	return err == nil && n.GetExecs() && !op.GetEndExecs()
}

func captureAtSource(ctx context.Context, e *Engine, op *nodev1.Operation) error {
	order := captureOf(op)
	order.Execs = e.takesExecs(op)
	resp, err := ask(ctx, e.core, op.GetSource(), nodev1.PeerService.Capture, &nodev1.PeerCaptureRequest{Vm: op.GetVm(),
		Capture: order})
	if err != nil {
		return err
	}
	if resp.GetDigest() == "" {
		return fmt.Errorf("the shim named no digest: %w", errdefs.ErrInternal)
	}
	figures := e.captured(op, resp)
	return e.advance(ctx, op, &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_TRANSFERRING, Digest: resp.GetDigest(),
		Receipt: figures.String()})
}

// sendLive streams the VM to a destination that is prepared; it answers when that has all
// of it and has written READY.
func sendLive(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	offer, err := ask(ctx, e.core, op.GetSource(), nodev1.PeerService.Offer, peerRef(op))
	if err != nil {
		return err
	}
	prepared, err := ask(ctx, e.core, op.GetDestination(), nodev1.PeerService.Prepare, &nodev1.PeerPrepareRequest{
		Vm: op.GetVm(), Ref: ref(op), Offer: offer, Stdio: op.GetStdio(), TimeoutMs: op.GetTimeoutMs(),
	})
	if err != nil {
		return err
	}
	if err := waitsFor(op, offer, prepared.GetWaits()); err != nil {
		return err
	}
	resp, err := ask(ctx, e.core, op.GetSource(), nodev1.PeerService.Send, &nodev1.PeerSendRequest{Vm: op.GetVm(),
		Send: &machinev1.SendRequest{
			Ref: ref(op), Address: prepared.GetAddress(), Channel: prepared.GetChannel(), Certificate: prepared.GetCertificate(),
			DowntimeMs: op.GetDowntimeMs(), Bandwidth: op.GetBandwidth(), EndExecs: op.GetEndExecs(),
			TimeoutMs: op.GetTimeoutMs(), Execs: e.takesExecs(op), Waits: true,
		}})
	if err == nil && resp.GetWaits() != "" {
		return &waitError{resp.GetWaits()}
	}
	if err != nil {
		return err
	}
	if !strings.HasPrefix(resp.GetDigest(), record.StreamPrefix) {
		return fmt.Errorf("the shim named %q as what it sent: %w", resp.GetDigest(), errdefs.ErrInternal)
	}
	still := resp.GetPauseMs() + resp.GetReadyMs()
	if err := e.tooLong(op, still); err != nil {
		return err
	}
	figures := record.Receipt{
		Operation: op.GetId(), Attempt: op.GetAttempt(), Generation: op.GetGeneration(), Digest: resp.GetDigest(),
		PauseMS: resp.GetPauseMs(), CopyMS: still, RAMBytes: resp.GetRamBytes(), ResidentBytes: resp.GetResidentBytes(),
		MovedBytes: resp.GetMovedBytes(), Tracking: resp.GetTracking(), Untracked: resp.GetUntracked(),
		StopMS: resp.GetStopMs(), SaveMS: resp.GetSaveMs(), Passes: passesOf(resp.GetPasses()),
		StopAt: e.now().Add(-time.Duration(still * float64(time.Millisecond))).UnixNano(),
	}
	return e.advance(ctx, op, &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_SWITCHING, Digest: resp.GetDigest(),
		Receipt: figures.String()})
}

func (e *Engine) tooLong(op *nodev1.Operation, ms float64) error {
	if op.GetDowntimeMs() > 0 && ms > float64(op.GetDowntimeMs()) &&
		slices.Contains(op.GetAbortOn(), moves.AbortOnDowntime) {
		return fmt.Errorf("the VM stood still for %.0f ms, %d ms are allowed: %w", ms, op.GetDowntimeMs(), errdefs.ErrAborted)
	}
	return nil
}

func sinceMS(unixNano int64, now time.Time) float64 {
	return float64(now.UnixNano()-unixNano) / float64(time.Millisecond)
}
