package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/schema"
	"godwit.dev/godwit/migrate/kubernetes/store"
)

// nodesBound of one look at all nodes. The API server is asked of those alone whose object changes.
const nodesBound = 30 * time.Second

// Nodes keeps GodwitNodes, by which people see the nodes. Nothing is decided by them.
type Nodes struct {
	Client client.Client // writes, and reads from the cache
	// Current reads from the API server.
	Current View
	// Heard are the nodes by name, and what the records have of each. Neither asks the API server.
	Heard   func() map[string]decide.NodeHeard
	Records func() func(node string) decide.NodeRecords
	// Every is how often it looks. 0: as often as nodes say that they live.
	Every time.Duration
	Now   func() time.Time // nil: time.Now

	wrote map[string]time.Time
}

// HeardOf answers what a controller has heard of nodes.
func HeardOf(state *cluster.State) map[string]decide.NodeHeard {
	all := map[string]decide.NodeHeard{}
	for _, k := range state.Heard() {
		all[k.Info.GetName()] = decide.NodeHeard{Info: k.Info, Said: k.Said}
	}
	return all
}

// Run looks at the nodes until ctx ends.
func (n *Nodes) Run(ctx context.Context) {
	tick, said := time.NewTicker(cmp.Or(n.Every, cluster.Interval)), ""
	defer tick.Stop()
	for {
		err := n.round(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			said = ""
		case err.Error() != said:
			said = err.Error()
			slog.WarnContext(ctx, "GodwitNodes are old", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// round looks at each node once. One that fails holds up none of the others.
func (n *Nodes) round(ctx context.Context) error {
	if n.Now == nil {
		n.Now = time.Now
	}
	if n.wrote == nil {
		n.wrote = map[string]time.Time{}
	}
	ctx, cancel := context.WithTimeout(ctx, nodesBound)
	defer cancel()
	all := &v1alpha1.GodwitNodeList{}
	if err := n.Client.List(ctx, all); err != nil {
		return fmt.Errorf("list GodwitNodes: %w", err)
	}
	heard, of := n.Heard(), n.Records()
	for i := range all.Items {
		if name := all.Items[i].Name; heard[name].Info == nil { // its Node may be gone, though no word is remembered
			heard[name] = decide.NodeHeard{}
		}
	}
	var errs []error
	for name, said := range heard {
		errs = append(errs, n.look(ctx, name, said, of(name)))
	}
	return errors.Join(errs...)
}

// look makes what is to be made of one node. What a cache tells proves nothing: what is done is decided by the API
// server's own word.
func (n *Nodes) look(ctx context.Context, name string, heard decide.NodeHeard, of decide.NodeRecords) error {
	o := decide.Node{Heard: heard, Of: of, Wrote: n.wrote[name], Now: n.Now()}
	if err := observeNode(ctx, View{Reader: n.Client}, name, &o); err != nil {
		return err
	}
	if do, _ := decide.NextNode(o); do == decide.None {
		return nil
	}
	if err := observeNode(ctx, n.Current, name, &o); err != nil {
		return err
	}
	if err := n.Current.Schemas.Check(ctx, ofNodes); errors.Is(err, schema.ErrOutdated) {
		return nil // the guard tells it
	} else if err != nil {
		return err
	}
	do, status := decide.NextNode(o)
	err := n.apply(ctx, o, do, status)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || store.IsAbsent(err) {
		return nil // the next round looks again
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", do, name, err)
	}
	return nil
}

func observeNode(ctx context.Context, v View, name string, o *decide.Node) error {
	key, node, object := types.NamespacedName{Name: name}, &corev1.Node{}, &v1alpha1.GodwitNode{}
	o.Node, o.Object = nil, nil
	there, err := v.Get(ctx, key, object)
	if there {
		o.Object = object
	}
	if err != nil {
		return err
	}
	// The Node is read after the object: the object of a Node that is made meanwhile is not taken for that of another.
	if there, err = v.Get(ctx, key, node); there {
		o.Node = node
	}
	return err
}

func (n *Nodes) apply(ctx context.Context, o decide.Node, do decide.Do, status *v1alpha1.GodwitNodeStatus) error {
	object := o.Object
	switch do {
	case decide.DeleteNode:
		return n.Client.Delete(ctx, object, client.Preconditions{UID: &object.UID, ResourceVersion: &object.ResourceVersion})
	case decide.MakeNode:
		object = decide.NodeOf(o.Node)
		if err := n.Client.Create(ctx, object, schema.Strict); err != nil {
			return err
		}
	case decide.WriteNode:
	default:
		return nil
	}
	n.wrote[o.Node.Name] = o.Now // one that fails is not tried at once either
	object.Status = *status
	return n.Client.Status().Update(ctx, object, schema.Strict)
}
