package registry

import (
	"sync"
	"time"

	"godwit.dev/godwit/snapshot/worker"
)

// An answer of a worker is as good as a new one for freshFor, and freshMost are remembered.
const (
	freshFor  = 10 * time.Second
	freshMost = 16
)

// fresh is what was read of snapshots a moment ago: a wake asks first whether the VM finds room,
// then what it is made of, and each question is a process. An answer is used once, and soon: the
// store may go, and keys and credentials may change.
type fresh struct {
	mu  sync.Mutex
	all map[string]freshly
}

type freshly struct {
	opened *worker.Opened
	until  time.Time
}

func (f *fresh) put(repository, dgst string, o *worker.Opened) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[string]freshly{}
	}
	now := time.Now()
	for name, old := range f.all {
		if now.After(old.until) {
			delete(f.all, name)
		}
	}
	if len(f.all) >= freshMost {
		clear(f.all) // a caller that asks for so many reads once more
	}
	f.all[repository+"@"+dgst] = freshly{o, now.Add(freshFor)}
}

// take answers nil if nothing was read, or that is too long ago.
func (f *fresh) take(repository, dgst string) *worker.Opened {
	f.mu.Lock()
	defer f.mu.Unlock()
	old, ok := f.all[repository+"@"+dgst]
	delete(f.all, repository+"@"+dgst)
	if !ok || time.Now().After(old.until) {
		return nil
	}
	return old.opened
}
