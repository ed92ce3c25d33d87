package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
)

// errLost says that a claim was lost while it was needed.
var errLost = errors.New("the claim was lost")

// claims are leases, one for each snapshot that this node captures: whatever orders there are, one holder captures it.
type claims struct {
	client    kubernetes.Interface
	namespace string
	node      string
	lasts     time.Duration
}

func newClaims(config *rest.Config, namespace, node string, lasts time.Duration) (claims, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return claims{}, fmt.Errorf("make a client of leases: %w", err)
	}
	return claims{client, namespace, node, lasts}, nil
}

// claim is a lease that is held, as far as its holder knows.
type claim struct {
	claims
	name, holder string
	stopping     func() bool // the agent is: it has not lost the claim
}

// held asks the API server itself.
func (c claim) held(ctx context.Context) (bool, error) {
	lease, err := c.client.CoordinationV1().Leases(c.namespace).Get(ctx, c.name, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read claim %s: %w", c.name, err)
	}
	return lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == c.holder, nil
}

// with does something while the claim is held. It waits for a claim that another one has. The context of do ends with
// the claim.
func (c claims) with(ctx context.Context, order *v1alpha1.VMSnapshotContent,
	do func(ctx context.Context, mine claim) error) error {
	name, me := decide.ClaimName(types.UID(order.Spec.SnapshotRef.UID), c.node), uuid.NewString()
	if err := c.make(ctx, name, order); err != nil {
		return err
	}
	mine := claim{c, name, me, func() bool { return ctx.Err() != nil }}
	own, done := context.WithCancel(ctx)
	defer done()
	ended := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: name},
			Client:     c.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: me}},
		LeaseDuration: c.lasts, RenewDeadline: c.lasts * 2 / 3, RetryPeriod: c.lasts / 5, ReleaseOnCancel: true, Name: name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				ended <- do(ctx, mine)
				done()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("claim %s: %w", name, err)
	}
	elector.Run(own)
	if own.Err() == nil { // it was not called off: it could not be renewed
		return errors.Join(<-ended, errLost)
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	return ctx.Err()
}

// make makes the lease, so that it goes with its order.
func (c claims) make(ctx context.Context, name string, order *v1alpha1.VMSnapshotContent) error {
	lease := &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "VMSnapshotContent", Name: order.Name, UID: order.UID}}}}
	_, err := c.client.CoordinationV1().Leases(c.namespace).Create(ctx, lease, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("claim %s: %w", name, err)
	}
	return nil
}

// running are the snapshots that this process captures.
type running struct {
	mu  sync.Mutex
	all map[string]bool
}

// begin answers false for one that runs already.
func (r *running) begin(snapshot string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all[snapshot] {
		return false
	}
	if r.all == nil {
		r.all = map[string]bool{}
	}
	r.all[snapshot] = true
	return true
}

func (r *running) end(snapshot string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, snapshot)
}

func (r *running) has(snapshot string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[snapshot]
}
