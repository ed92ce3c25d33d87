package engine

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// simHost is a node as its own daemon sees it: what it asks comes late, is old when it comes, or fails.
type simHost struct {
	*simNode
}

func away(n *simNode, call string) error {
	return fmt.Errorf("%s: no shim answers at %s: %w", call, n.name, errdefs.ErrUnavailable)
}

// late lets others go on, now and then for long: the daemon is stopped, or what it has asked is slow.
func (h *simHost) late() {
	h.yield()
	if h.chance(4) {
		for range h.rng.IntN(200) {
			h.yield()
		}
	}
}

// shim does what a shim does on an order, which may be lost on the way there or back.
func (h *simHost) shim(call string, do func() error) error {
	h.yield()
	if h.headless || h.unread > 0 || h.chance(5) {
		return away(h.simNode, call)
	}
	if h.record == "" {
		return fmt.Errorf("%s: nothing of it is at %s: %w", call, h.name, errdefs.ErrNotFound)
	}
	err := do()
	h.late()
	if h.chance(5) {
		return away(h.simNode, call)
	}
	return err
}

func (h *simHost) Query(context.Context, *nodev1.VM) (resp *machinev1.QueryResponse, err error) {
	err = h.shim("query", func() error {
		resp = &machinev1.QueryResponse{State: stateRunning, Record: h.record, Generation: h.journal(), Uid: h.rounds.uid,
			CreatedUnixNano: 1, Ref: h.ref, Digest: h.sent, Adopted: !h.task}
		switch {
		case h.vmm == vmmDead, h.vmm == vmmOff:
			resp.State = stateStopped
		case h.record == recordOwn && h.vmm == vmmPaused:
			resp.State = "starting"
		}
		return nil
	})
	return resp, err
}

// journal is the generation that the node's journal has.
func (n *simNode) journal() uint64 {
	if n.record == recordOwn {
		return n.gen
	}
	return n.ref.GetGeneration()
}

// Abort is the shim's, of a source or of a destination.
func (h *simHost) Abort(_ context.Context, _ *nodev1.VM, req *machinev1.AbortRequest) error {
	return h.shim("abort", func() error {
		if (h.record == recordIncoming || h.record == recordReady) && h.holds(req.GetRef()) {
			if h.starting {
				return refused(h.simNode, "abort what starts")
			}
			h.vmm = vmmOff
			h.write(recordFenced, req.GetRef())
			h.closeWake()
			return nil
		}
		if h.record == recordOwn || h.record == recordFenced || h.record == recordIncoming || h.record == recordReady {
			return nil
		}
		_, err := h.abort(req.GetRef())
		return err
	})
}

func (h *simHost) Release(_ context.Context, _ *nodev1.VM, req *machinev1.ReleaseRequest) error {
	return h.shim("release", func() error { _, err := h.release(req.GetRef()); return err })
}

func (h *simHost) Revert(_ context.Context, _ *nodev1.VM, req *machinev1.RevertRequest) (*machinev1.RevertResponse,
	error) {
	err := h.shim("revert", func() error { _, err := h.revert(req.GetRef(), req.GetOwnerGeneration()); return err })
	return &machinev1.RevertResponse{}, err
}

// EndSuperseded asks the record too, as shims do.
func (h *simHost) EndSuperseded(_ context.Context, _ *nodev1.VM, generation uint64, _ string) error {
	return h.shim("end", func() error {
		gen, ref := h.journal(), h.ref
		rec, err := h.get()
		if err != nil {
			return err
		}
		op := rec.GetOperation()
		if h.record != recordOwn && h.record != recordSending || gen >= generation || rec.GetGeneration() < generation ||
			rec.GetOwner().GetNode() == h.name ||
			op != nil && op.GetId() == ref.GetOperation() && h.record == recordSending {
			return refused(h.simNode, "end")
		}
		h.vmm = vmmOff
		h.gone()
		h.write("", nil)
		return nil
	})
}

// simTasks is the node's containerd. It knows tasks by the order that made them.
type simTasks struct{ *simHost }

// simDeparted is what containerd holds of a VM that left.
type simDeparted struct{ *simHost }

func (l simDeparted) MarkDeparted(context.Context, *nodev1.VM, int64, string, string) error {
	l.yield()
	if l.chance(5) {
		return fmt.Errorf("containerd of %s: %w", l.name, errdefs.ErrUnavailable)
	}
	l.pod.departed = l.pod.sandbox
	return nil
}

func (l simDeparted) CleanDeparted(context.Context, *nodev1.VM, string, string) error {
	l.yield()
	if l.chance(5) {
		return fmt.Errorf("containerd of %s: %w", l.name, errdefs.ErrUnavailable)
	}
	if l.pod.sandbox != l.pod.departed { // a sandbox that was made since stays as it is
		return nil
	}
	if l.task = false; l.record == recordReleased {
		l.write("", nil)
	}
	return nil
}

func (l simDeparted) RemoveDeparted(context.Context, *nodev1.VM, string) error { return nil }
