package engine

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// simPeers reaches the nodes.
type simPeers struct{ s *simulation }

func (p simPeers) Peer(node string) (nodev1.PeerService, error) {
	if p.s.nodes[node] == nil {
		return nil, fmt.Errorf("node %s: %w", node, errdefs.ErrNotFound)
	}
	return simLink{s: p.s, n: p.s.nodes[node]}, nil
}

func (p simPeers) Node(node string) (*nodev1.NodeInfo, error) {
	return &nodev1.NodeInfo{Name: node, Address: node, Up: true}, nil
}
func (p simPeers) Nodes() []*nodev1.NodeInfo { return nil }
func (p simPeers) Drives(string) bool        { return true }

// simLink is the way to one node.
type simLink struct {
	nodev1.PeerService
	s *simulation
	n *simNode
}

func over[R any](l simLink, name string, do func() (R, error)) (R, error) {
	return call(&l.s.schedule, name, l.n.name, func() (R, error) {
		if l.n.headless || l.n.cut > 0 {
			var none R
			return none, fmt.Errorf("%s: no shim at %s: %w", name, l.n.name, errdefs.ErrUnavailable)
		}
		return do()
	})
}

func (l simLink) Check(context.Context, *nodev1.PeerCheckRequest) (*nodev1.PeerCheckResponse, error) {
	return over(l, "check", func() (*nodev1.PeerCheckResponse, error) { return &nodev1.PeerCheckResponse{}, nil })
}

func (l simLink) Prepare(_ context.Context, r *nodev1.PeerPrepareRequest) (*nodev1.PeerPrepareResponse, error) {
	return over(l, "prepare", func() (*nodev1.PeerPrepareResponse, error) { return l.n.prepare(r) })
}

func (l simLink) Run(_ context.Context, r *nodev1.PeerRef) (*nodev1.PeerRunResponse, error) {
	return over(l, "run", func() (*nodev1.PeerRunResponse, error) { return l.n.thaw(r.GetRef()) })
}

func (l simLink) Discard(_ context.Context, r *nodev1.PeerRef) (*nodev1.PeerState, error) {
	return over(l, "discard", func() (*nodev1.PeerState, error) { return l.n.discard(r.GetRef()) })
}

func (l simLink) Query(context.Context, *nodev1.PeerRef) (*nodev1.PeerState, error) {
	return over(l, "query", func() (*nodev1.PeerState, error) {
		return &nodev1.PeerState{Known: true, Machine: &machinev1.QueryResponse{Record: l.n.record, Ref: l.n.ref}}, nil
	})
}

func (l simLink) Offer(_ context.Context, r *nodev1.PeerRef) (*machinev1.OfferResponse, error) {
	return over(l, "offer", func() (*machinev1.OfferResponse, error) { return l.n.offer(r.GetRef()) })
}

func (l simLink) Send(_ context.Context, r *nodev1.PeerSendRequest) (*machinev1.SendResponse, error) {
	return over(l, "send", func() (*machinev1.SendResponse, error) {
		return l.n.send(r.GetSend().GetRef(), r.GetSend().GetChannel())
	})
}

func (l simLink) Capture(_ context.Context, r *nodev1.PeerCaptureRequest) (*machinev1.CaptureResponse, error) {
	return over(l, "capture", func() (*machinev1.CaptureResponse, error) { return l.n.capture(r.GetCapture().GetRef()) })
}

func (l simLink) Vote(_ context.Context, r *nodev1.PeerRef) (*machinev1.VoteResponse, error) {
	return over(l, "vote", func() (*machinev1.VoteResponse, error) { return l.n.vote(r.GetRef()) })
}

func (l simLink) Abort(_ context.Context, r *nodev1.PeerAbortRequest) (*machinev1.AbortResponse, error) {
	return over(l, "abort", func() (*machinev1.AbortResponse, error) { return l.n.abort(r.GetRef()) })
}

func (l simLink) Revert(_ context.Context, r *nodev1.PeerRevertRequest) (*machinev1.RevertResponse, error) {
	return over(l, "revert", func() (*machinev1.RevertResponse, error) {
		return l.n.revert(r.GetRef(), r.GetOwnerGeneration())
	})
}

func (l simLink) Release(_ context.Context, r *nodev1.PeerReleaseRequest) (*nodev1.PeerState, error) {
	return over(l, "release", func() (*nodev1.PeerState, error) { return l.n.release(r.GetRef()) })
}
