//go:build integration

package operator

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/schema"
	"godwit.dev/godwit/migrate/moves"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const digestOf = "sha256:3333333333333333333333333333333333333333333333333333333333333333"

// crowd are the nodes as the controller that leads hears them.
type crowd struct {
	t       *testing.T
	service *moves.Service
	state   *cluster.State

	rounds atomic.Int64
	mu     sync.Mutex
	mute   map[string]bool
	vms    map[string]int
	later  time.Duration // that the clock is ahead
}

func newCrowd(t *testing.T) *crowd {
	t.Helper()
	state, err := cluster.OpenFor(t.Context(), storetest.NewMemory(), false, "operator")
	if err != nil {
		t.Fatal(err)
	}
	return &crowd{t: t, state: state, service: &moves.Service{Self: "operator", Cluster: state},
		mute: map[string]bool{}, vms: map[string]int{}}
}

// says is a heartbeat of a node, as the server takes it.
func (c *crowd) says(peer string, info *nodev1.NodeInfo) error {
	req := &nodev1.AnnounceRequest{Node: info}
	if err := controller.CheckRequest(req); err != nil {
		return err
	}
	_, err := c.service.Announce(controller.WithPeer(c.t.Context(), peer), req)
	return err
}

func (c *crowd) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// view looks through the clients of an operator.
func (c *crowd) view(cl client.Client, current View) *Nodes {
	return &Nodes{Client: cl, Current: current, Every: 20 * time.Millisecond,
		Heard: func() map[string]decide.NodeHeard {
			c.rounds.Add(1)
			c.mu.Lock()
			defer c.mu.Unlock()
			all := HeardOf(c.state)
			for name, h := range all {
				h.Info.Up = h.Info.GetUp() && !c.mute[name]
			}
			return all
		},
		Records: func() func(string) decide.NodeRecords {
			return func(node string) decide.NodeRecords {
				c.mu.Lock()
				defer c.mu.Unlock()
				return decide.NodeRecords{Known: true, Judged: true, VMs: c.vms[node], Digests: []string{digestOf}}
			}
		},
		Now: func() time.Time {
			c.mu.Lock()
			defer c.mu.Unlock()
			return time.Now().Add(c.later)
		}}
}

// run has an operator keep the view until the test ends.
func (c *crowd) run(guard *schema.Guard) *requests {
	c.t.Helper()
	return start(c.t, func(o *Options) {
		o.Manager = func(mgr manager.Manager) error {
			return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
				if guard == nil {
					guard = o.Schemas
				}
				c.view(mgr.GetClient(), View{Reader: mgr.GetAPIReader(), Schemas: guard}).Run(ctx)
				return nil
			}))
		}
	})
}

// looks waits until all nodes were looked at some more times.
func (c *crowd) looks(times int64) {
	c.t.Helper()
	from := c.rounds.Load()
	apitest.Eventually(c.t, "the nodes are looked at", func() (bool, error) { return c.rounds.Load() > from+times, nil })
}

func (c *crowd) becomes(name, what string, is func(*v1alpha1.GodwitNode) bool) *v1alpha1.GodwitNode {
	c.t.Helper()
	o := &v1alpha1.GodwitNode{}
	apitest.Eventually(c.t, "GodwitNode "+name+" "+what, func() (bool, error) {
		next := &v1alpha1.GodwitNode{}
		err := api().Get(c.t.Context(), client.ObjectKey{Name: name}, next)
		o = next
		return err == nil && is(o), fmt.Errorf("%+v, %v", o.Status, err)
	})
	return o
}

func (c *crowd) joins(name string) *corev1.Node {
	c.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	create(c.t, n)
	if err := c.says(name, saidBy(name)); err != nil {
		c.t.Fatal(err)
	}
	return n
}

func saidBy(name string) *nodev1.NodeInfo {
	return &nodev1.NodeInfo{Name: name, Address: name + ":7641", Version: "v1", RamBytes: 64 << 30, FreeBytes: 32 << 30,
		CpuClasses: []string{"kvm/host-1"}, Vmms: []string{"qemu/7.2"}}
}

func readyBy(o *v1alpha1.GodwitNode) string {
	if c := meta.FindStatusCondition(o.Status.Conditions, decide.CondReady); c != nil {
		return c.Reason
	}
	return ""
}

func seen(o *v1alpha1.GodwitNode) bool { return readyBy(o) != "" }

// asked are the requests for what people see of nodes. Watches are none, nor is the first list of each.
func (c *crowd) asked(of *requests) (all []string) {
	for _, req := range of.seen() {
		if (strings.Contains(req, "/godwitnodes") || strings.Contains(req, "/api/v1/nodes")) &&
			!strings.Contains(req, "watch=true") {
			all = append(all, req)
		}
	}
	return all
}
