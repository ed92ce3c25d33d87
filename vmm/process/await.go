package process

import "sync"

// Waiters want events that calls of theirs cause. The zero value has none.
type Waiters[E any] struct {
	mu  sync.Mutex
	all map[*Waiter[E]]struct{}
}

// Waiter gets the events that match, each of them: it is made before the call that causes
// them.
type Waiter[E any] struct {
	Got   chan E // a reader that is slow loses some
	match func(E) bool
	of    *Waiters[E]
}

// Expect makes a waiter; Close ends it.
func (w *Waiters[E]) Expect(match func(E) bool) *Waiter[E] {
	one := &Waiter[E]{Got: make(chan E, 16), match: match, of: w}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[*Waiter[E]]struct{}{}
	}
	w.all[one] = struct{}{}
	return one
}

// Tell hands e to those who want it, and never blocks: it runs on the reader of events.
func (w *Waiters[E]) Tell(e E) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.all {
		if !one.match(e) {
			continue
		}
		select {
		case one.Got <- e:
		default:
		}
	}
}

// Close is for who made the waiter, once.
func (w *Waiter[E]) Close() {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	delete(w.of.all, w)
}
