package operator

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/decide"
)

const (
	// outageFirst is after how long an order is given again that could not be: no watch tells of nodes that answer.
	outageFirst = 5 * time.Second
	// outageMost is the most that it waits, however long its node is away.
	outageMost = 5 * time.Minute
	// outagePart of the time for which an order could not be given goes by before the next try.
	outagePart = 4
)

// outages are the orders that could not be given. Each try reads all that an order is decided by from the API server.
// So an order is given again the later the longer its node is away, whatever tells of it meanwhile.
type outages struct {
	mu     sync.Mutex
	orders map[types.NamespacedName]outage
}

type outage struct {
	node       string // that had the VM
	began, due time.Time
}

// failed answers after how long an order is given again.
func (o *outages) failed(order decide.Operation, now time.Time) time.Duration {
	name, node := client.ObjectKeyFromObject(order.Object), order.Record.GetOwner().GetNode()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.orders == nil {
		o.orders = map[types.NamespacedName]outage{}
	}
	is, there := o.orders[name]
	if !there || is.node != node {
		is = outage{node: node, began: now}
	}
	after := min(outageMost, max(outageFirst, now.Sub(is.began)/outagePart))
	is.due = now.Add(after)
	o.orders[name] = is
	return after
}

// left is how long it is until an order is given again; 0: none, also once another node has the VM.
func (o *outages) left(order decide.Operation, now time.Time) time.Duration {
	name, node := client.ObjectKeyFromObject(order.Object), order.Record.GetOwner().GetNode()
	o.mu.Lock()
	defer o.mu.Unlock()
	is, there := o.orders[name]
	if !there || is.node != node {
		return 0
	}
	return max(0, is.due.Sub(now))
}

// over forgets an order that was given, or that waits for something else.
func (o *outages) over(name types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.orders, name)
}
