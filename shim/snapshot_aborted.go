package shim

import (
	"sync"

	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// abortedAttempts remembers attempts that were aborted: an order of one that was held up on its way must not take the
// VM again, for that hold would never end.
type abortedAttempts struct {
	mu   sync.Mutex
	refs []*machinev1.Ref // oldest first
}

// mostAborted bounds how many are remembered: an order is late by seconds.
const mostAborted = 16

func (p *abortedAttempts) add(ref *machinev1.Ref) {
	if p.has(ref) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refs = append(p.refs, ref)
	p.refs = p.refs[max(0, len(p.refs)-mostAborted):]
}

func (p *abortedAttempts) has(ref *machinev1.Ref) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, over := range p.refs {
		if over.GetOperation() == ref.GetOperation() && over.GetAttempt() >= ref.GetAttempt() {
			return true
		}
	}
	return false
}
