package control

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/kubernetes/operator"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// hanging are nodes: a hangs in each call until it has recovered, c is silent, and the others answer.
type hanging struct {
	nodev1.PeerService
	calls     atomic.Int64
	node      string
	all       *hanging
	recovered atomic.Bool
}

func (h *hanging) Peer(node string) (nodev1.PeerService, error) {
	return &hanging{node: node, all: h}, nil
}

func (h *hanging) Node(name string) (*nodev1.NodeInfo, error) {
	if name == "x" {
		return nil, errdefs.ErrNotFound
	}
	return &nodev1.NodeInfo{Name: name, Up: name != "c"}, nil
}

func (h *hanging) Hibernate(ctx context.Context, _ *nodev1.HibernateRequest) (*nodev1.StatusResponse, error) {
	h.all.calls.Add(1)
	if h.node == "a" && !h.all.recovered.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &nodev1.StatusResponse{}, nil
}

func toHibernate(node string) operator.Order {
	return operator.Order{Kind: nodev1.Kind_KIND_HIBERNATE, ID: "o", Record: &nodev1.Record{
		Vm: &nodev1.VM{Namespace: "k8s.io", Id: "ns.vm"}, Owner: &nodev1.Owner{Node: node}}}
}

// A node that hangs holds few callers, and those for a short time. Then nothing is asked of it for a while. Orders of
// other nodes go on meanwhile, and its own do once it answers.
func TestNodeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{}
		o := NewOrders(nil, h, nil, nil)
		begun := time.Now()
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				err := o.Order(t.Context(), toHibernate("a"))
				if !errdefs.IsUnavailable(err) && !errors.Is(err, operator.ErrTurn) || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the node that hangs: %v", err)
				}
			})
		}
		synctest.Wait()
		if n := h.calls.Load(); n != asksOfNode {
			t.Errorf("%d calls of it at once", n)
		}
		if err := o.Order(t.Context(), toHibernate("b")); err != nil || time.Since(begun) > 0 {
			t.Errorf("another node, after %v: %v", time.Since(begun), err)
		}
		all.Wait()
		for range 10 {
			if err := o.Order(t.Context(), toHibernate("a")); !errdefs.IsUnavailable(err) {
				t.Errorf("while it rests: %v", err)
			}
		}
		if took := time.Since(begun); took != askBound || h.calls.Load() != asksOfNode+1 {
			t.Errorf("it was asked until %v, %d calls", took, h.calls.Load())
		}
		time.Sleep(askRest)
		h.recovered.Store(true)
		for range 2 * asksOfNode {
			if err := o.Order(t.Context(), toHibernate("a")); err != nil {
				t.Errorf("once it answers: %v", err)
			}
		}
		if len(o.asks.of) != 0 {
			t.Errorf("of nodes that answer is noted %v", o.asks.of)
		}
	})
}

// After its rest a node is asked once at a time, until it answers.
func TestNodeThatHangsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{}
		o := NewOrders(nil, h, nil, nil)
		_ = o.Order(t.Context(), toHibernate("a"))
		time.Sleep(askRest)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { _ = o.Order(t.Context(), toHibernate("a")) })
		}
		all.Wait()
		if n := h.calls.Load(); n != 2 {
			t.Errorf("%d calls", n)
		}
	})
}

// A node that is not up, or that is not known yet, is asked nothing: its order waits, and is not refused.
func TestOrderToANodeThatIsNotUp(t *testing.T) {
	h := &hanging{}
	for _, node := range []string{"c", "x"} {
		if err := NewOrders(nil, h, nil, nil).Order(t.Context(), toHibernate(node)); !errdefs.IsUnavailable(err) ||
			errdefs.IsNotFound(err) {
			t.Errorf("node %s: %v", node, err)
		}
	}
	if n := h.calls.Load(); n != 0 {
		t.Errorf("%d calls", n)
	}
}
