package moves

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/engine"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// speaker is a node that has only events to tell.
type speaker struct{ Outbox }

func (*speaker) Self() *nodev1.NodeInfo                                { return &nodev1.NodeInfo{Name: "a"} }
func (*speaker) Heard(context.Context, *nodev1.AnnounceResponse) error { return nil }

// hearing is a controller that is out of reach at first.
type hearing struct {
	nodev1.MovesService
	heard [][]string // by call
	third error      // the answer to the third call
	over  context.CancelFunc
}

func (h *hearing) Announce(_ context.Context, req *nodev1.AnnounceRequest) (*nodev1.AnnounceResponse, error) {
	var all []string
	for _, ev := range req.GetEvents() {
		all = append(all, ev.GetType()+" "+ev.GetReason())
	}
	switch h.heard = append(h.heard, all); len(h.heard) {
	case 1:
		return nil, errdefs.ErrUnavailable
	case 3:
		return nil, h.third
	case 4:
		h.over()
	}
	return &nodev1.AnnounceResponse{}, nil
}

// A VM may still run on a node for which it was called lost. What the node has ended of such VMs its heartbeats
// tell until one was heard, some at a time. Nothing else of what it does is told so. What the controller refuses
// holds up nothing that comes after it.
func TestNodeTellsWhatItEnded(t *testing.T) {
	for third, last := range map[error]int{nil: 0, errdefs.ErrNotFound: 0, errdefs.ErrResourceExhausted: 0,
		errdefs.ErrPermissionDenied: 1} {
		tells(t, third, last)
	}
}

func tells(t *testing.T, third error, last int) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := &hearing{over: cancel, third: third}
		m := &speaker{}
		var all []string
		for i := range MaxTold + 1 {
			why := fmt.Sprint(i)
			m.Event(ctx, engine.Event{Type: engine.Superseded, VM: &nodev1.VM{Id: "web"}, Reason: why})
			m.Event(ctx, engine.Event{Type: engine.Retrying, Reason: why})
			all = append(all, "Outlived "+why)
		}
		Live(ctx, h, m)
		want := [][]string{all[:MaxTold], all[:MaxTold], all[MaxTold:], all[len(all)-last:]}
		if !slices.EqualFunc(h.heard, want, slices.Equal) {
			t.Errorf("heard %v", h.heard)
		}
	})
}
