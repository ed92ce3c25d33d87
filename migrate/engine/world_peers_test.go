package engine

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// sides are the nodes of a move, as the controller reaches them.
type sides struct{ *world }

func (s sides) Peer(node string) (nodev1.PeerService, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.silent[node] {
		return nil, &LinkError{Node: node, Err: errdefs.ErrUnavailable}
	}
	return side{&machine{world: s.world, node: node}}, nil
}

func (s sides) Node(node string) (*nodev1.NodeInfo, error) {
	for _, n := range s.Nodes() {
		if n.GetName() == node {
			return n, nil
		}
	}
	return nil, fmt.Errorf("node %s: %w", node, errdefs.ErrNotFound)
}

func (s sides) Nodes() (all []*nodev1.NodeInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, name := range []string{"n1", "n2", "n3"} {
		all = append(all, &nodev1.NodeInfo{Name: name, Up: true, Cordoned: s.cordoned == name, FreeBytes: uint64(i),
			Execs: name != "n3"})
	}
	return all
}

func (sides) Drives(string) bool { return true }

// side is one node.
type side struct{ n *machine }

func (s side) Check(ctx context.Context, _ *nodev1.PeerCheckRequest) (resp *nodev1.PeerCheckResponse, err error) {
	err = s.n.do(ctx, "Check", func() error {
		resp = &nodev1.PeerCheckResponse{Obstacles: s.n.obstacles}
		return nil
	})
	return resp, err
}

func (s side) Offer(ctx context.Context, _ *nodev1.PeerRef) (resp *machinev1.OfferResponse, err error) {
	err = s.n.do(ctx, "Offer", func() error {
		if !s.n.live {
			return errdefs.ErrNotImplemented
		}
		resp = &machinev1.OfferResponse{}
		if s.n.pod {
			resp.Resume = []byte("{}")
			if s.n.probed--; s.n.probed >= 0 {
				resp.Waits = "exec probe runs"
			}
		}
		return nil
	})
	return resp, err
}

func (s side) Prepare(ctx context.Context, req *nodev1.PeerPrepareRequest) (*nodev1.PeerPrepareResponse, error) {
	waits := ""
	err := s.n.do(ctx, "Prepare", func() error {
		if s.n.awaits--; s.n.awaits >= 0 {
			waits = "it waits for CRI"
			return nil
		}
		if req.Offer == nil && !s.n.blobs[req.Digest] {
			return fmt.Errorf("prepare: %w", errdefs.ErrNotFound)
		}
		if s.n.state[s.n.node] == runs {
			return fmt.Errorf("prepare: %w", errdefs.ErrAlreadyExists)
		}
		s.n.set(s.n.node, created)
		return nil
	})
	return &nodev1.PeerPrepareResponse{Address: "x:1", Channel: "c", Waits: waits}, err
}

func (s side) Send(ctx context.Context, req *nodev1.PeerSendRequest) (resp *machinev1.SendResponse, err error) {
	err = s.n.do(ctx, "Send", func() error {
		if s.n.probes--; s.n.probes >= 0 {
			resp = &machinev1.SendResponse{Waits: "exec probe runs"}
			return nil
		}
		switch {
		case s.n.state[s.n.node] == runs:
			s.n.captures++
			s.n.execs = req.GetSend().GetExecs()
			s.n.ref, s.n.digest = req.GetSend().GetRef(), fmt.Sprintf("%s%d", record.StreamPrefix, s.n.captures)
			s.n.set(s.n.node, paused)
		case s.n.ref.GetOperation() != req.GetSend().GetRef().GetOperation():
			return stale("send: VM is %s", s.n.state[s.n.node])
		}
		resp = &machinev1.SendResponse{Digest: s.n.digest, PauseMs: 20, ReadyMs: 5}
		return nil
	})
	return resp, err
}

func (s side) Capture(ctx context.Context, req *nodev1.PeerCaptureRequest) (*machinev1.CaptureResponse, error) {
	return s.n.Capture(ctx, req.GetVm(), req.GetCapture())
}

func (s side) Vote(ctx context.Context, req *nodev1.PeerRef) (*machinev1.VoteResponse, error) {
	return s.n.Vote(ctx, req.GetVm(), &machinev1.VoteRequest{Ref: req.GetRef()})
}

func (s side) Abort(ctx context.Context, req *nodev1.PeerAbortRequest) (*machinev1.AbortResponse, error) {
	return &machinev1.AbortResponse{}, s.n.Abort(ctx, req.GetVm(), &machinev1.AbortRequest{Ref: req.GetRef()})
}

func (s side) Release(ctx context.Context, req *nodev1.PeerReleaseRequest) (*nodev1.PeerState, error) {
	return &nodev1.PeerState{}, s.n.Release(ctx, req.GetVm(), &machinev1.ReleaseRequest{Ref: req.GetRef(),
		Digest: req.GetDigest(), Moved: true})
}

// Run lets the VM run as a shim does: after it has seen the commit.
func (s side) Run(ctx context.Context, req *nodev1.PeerRef) (resp *nodev1.PeerRunResponse, err error) {
	err = s.n.do(ctx, "Run", func() error {
		rec, err := s.n.records.Get(ctx, &nodev1.GetRequest{Vm: vm})
		if err != nil {
			return err
		}
		op, ref := rec.GetOperation(), req.GetRef()
		if op.GetId() != ref.GetOperation() || op.GetAttempt() != ref.GetAttempt() || rec.GetOwner().GetNode() != s.n.node {
			return stale("run: %v owns it", rec.GetOwner())
		}
		switch {
		case s.n.fences:
			resp = &nodev1.PeerRunResponse{Fenced: true}
		case s.n.loses:
			s.n.state[s.n.node] = gone
			return errdefs.ErrDataLoss
		default:
			s.n.gens[s.n.node] = rec.GetGeneration()
			s.n.set(s.n.node, runs)
			resp = &nodev1.PeerRunResponse{Running: true}
		}
		return nil
	})
	return resp, err
}

func (s side) Discard(ctx context.Context, _ *nodev1.PeerRef) (*nodev1.PeerState, error) {
	err := s.n.do(ctx, "Discard", func() error {
		if s.n.state[s.n.node] == runs {
			s.n.broken = append(s.n.broken, "discard of a VM that runs")
		}
		s.n.set(s.n.node, gone)
		return nil
	})
	return &nodev1.PeerState{}, err
}

func (s side) Revert(ctx context.Context, req *nodev1.PeerRevertRequest) (*machinev1.RevertResponse, error) {
	return s.n.Revert(ctx, req.GetVm(), &machinev1.RevertRequest{Ref: req.GetRef(),
		OwnerGeneration: req.GetOwnerGeneration()})
}

func (s side) Query(ctx context.Context, req *nodev1.PeerRef) (*nodev1.PeerState, error) {
	q, err := s.n.Query(ctx, req.GetVm())
	if errdefs.IsNotFound(err) {
		return &nodev1.PeerState{}, nil
	}
	return &nodev1.PeerState{Known: true, Machine: q}, err
}

func (s side) Wake(ctx context.Context, req *nodev1.WakeRequest) (resp *nodev1.StatusResponse, err error) {
	var node *Engine
	err = s.n.do(ctx, "Wake", func() error {
		if node = s.n.wakes; node == nil {
			return errdefs.ErrNotImplemented
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return node.Wake(ctx, req)
}

func (s side) Hibernate(context.Context, *nodev1.HibernateRequest) (*nodev1.StatusResponse, error) {
	return nil, errdefs.ErrNotImplemented
}

func (s side) Checkpoint(context.Context, *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error) {
	return nil, errdefs.ErrNotImplemented
}

func (s side) Tell(context.Context, *nodev1.PeerTellRequest) (*machinev1.TellResponse, error) {
	return nil, errdefs.ErrNotImplemented
}

func (s side) Log(context.Context, *nodev1.LogRequest) (*nodev1.LogResponse, error) {
	return nil, errdefs.ErrNotImplemented
}

func (w *world) moveTo(e *Engine, id, to, mode string) error {
	_, err := e.Migrate(w.t.Context(), &nodev1.MigrateRequest{Vm: vm, To: to, Mode: mode, Operation: id})
	return err
}

func (w *world) moveCold(e *Engine, id string) error { return w.moveTo(e, id, "n2", "cold") }
func (w *world) moveLive(e *Engine, id string) error { return w.moveTo(e, id, "n2", "live") }

// names of the calls that were made, those of one kind.
func (w *world) count(name string) int {
	return strings.Count(" "+strings.Join(w.calls(), " ")+" ", " "+name+" ")
}
