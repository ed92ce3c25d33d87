package store

import (
	"errors"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"

	"godwit.dev/godwit/internal/durable"
)

// change is one of those that a commit makes durable.
type change struct {
	do   func(*bolt.Tx) error
	err  error         // once done is closed
	done chan struct{} // closed when the change is durable, or is refused
}

// update makes one change. Those that come while a commit is under way wait for it, and then share
// the next one: however many they are, they cost one sync. Each is answered for itself. do may run
// more than once, each time as if it had not run before. Its refusal (Conflict, AlreadyExists)
// comes before its first write; any other error undoes what it wrote.
func (b *Bolt) update(do func(*bolt.Tx) error) error {
	c := &change{do: do, done: make(chan struct{})}
	b.mu.Lock()
	b.waiting = append(b.waiting, c)
	b.mu.Unlock()
	select {
	case <-c.done: // another's commit had it
		return c.err
	case b.turn <- struct{}{}:
	}
	b.mu.Lock()
	all := b.waiting
	b.waiting = nil
	b.mu.Unlock()
	b.commit(all)
	<-b.turn
	<-c.done
	return c.err
}

// errNothing undoes a transaction that changes nothing.
var errNothing = errors.New("nothing to commit")

func refused(err error) bool { return errdefs.IsConflict(err) || errdefs.IsAlreadyExists(err) }

// commit makes changes in one transaction. One that fails in the midst of its writes is answered
// alone, and the others are made without it. What is refused is so by what the others have
// changed too: it is answered after them.
func (b *Bolt) commit(all []*change) {
	for len(all) > 0 {
		failed := -1
		err := b.db.Update(func(tx *bolt.Tx) error {
			made := false
			for i, c := range all {
				c.err = c.do(tx)
				if made = made || c.err == nil; c.err != nil && !refused(c.err) {
					failed = i
					return c.err
				}
			}
			if !made {
				return errNothing
			}
			return tx.Bucket(bucketMeta).Put(keyIndexed, []byte(strconv.Itoa(tx.ID())))
		})
		if failed >= 0 {
			close(all[failed].done)
			all = slices.Delete(all, failed, failed+1)
			continue
		}
		for _, c := range all {
			if err != nil && !errors.Is(err, errNothing) {
				c.err = durable.DiskError(err)
			}
			close(c.done)
		}
		return
	}
}
