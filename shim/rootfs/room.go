package rootfs

import (
	"errors"
	"os"

	"godwit.dev/godwit/internal/durable"
)

// evicting writes a disk, and has unused ones of the cache make room for it where the host's disk is
// full: the one that was used longest ago first, and no more than it takes.
type evicting struct {
	*os.File
	cache *Cache
	keep  string // name of one that stays; empty: none
}

func (r evicting) Write(buf []byte) (n int, err error) {
	for {
		var more int
		more, err = r.File.Write(buf[n:])
		n += more
		if !durable.IsFull(err) {
			return n, err
		}
		removed, evictErr := r.cache.evictOne(r.keep)
		if evictErr != nil || !removed {
			return n, errors.Join(err, evictErr)
		}
	}
}
