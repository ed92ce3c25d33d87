package controller

import (
	"slices"
	"sync"
	"time"
)

// raisedWithin is how long a doubt counts for its node, taken back or not: a node that takes doubts back
// and raises others stops no more VMs than one whose doubts stand.
const raisedWithin = 10 * time.Minute

// raisedDoubts are the doubts that nodes have raised lately about VMs that are not their own.
type raisedDoubts struct {
	mu sync.Mutex
	at map[string][]time.Time // by node, the oldest first
}

// room is how many more a node may raise now.
func (r *raisedDoubts) room(node string, now time.Time) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at[node] = slices.DeleteFunc(r.at[node], func(t time.Time) bool { return now.Sub(t) >= raisedWithin })
	if len(r.at[node]) == 0 {
		delete(r.at, node)
	}
	return max(0, maxOfNode-len(r.at[node]))
}

func (r *raisedDoubts) add(node string, now time.Time, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for range n {
		r.at[node] = append(r.at[node], now)
	}
}
