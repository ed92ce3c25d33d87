package snapshot

import (
	"errors"
	"math/rand/v2"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// seen finds pages that need no storing: those of the parent, and those that this
// capture has met before.
type seen struct {
	seed   uint64 // secret: a guest must not be able to fill one bucket
	parent *Table
	shards [64]shard
}

type shard struct {
	mu sync.Mutex
	m  map[uint64]origin
}

// origin is where a page was met first.
type origin struct {
	page  uint64
	frame *frame
	space uint8
	slot  uint8
}

func newSeen(parent *Table) *seen {
	s := &seen{seed: rand.Uint64(), parent: parent}
	if parent != nil {
		s.seed = parent.seed
	}
	for i := range s.shards {
		s.shards[i].m = map[uint64]origin{}
	}
	return s
}

func (s *seen) hasher() hasher {
	if s.parent == nil {
		return hasher{}
	}
	return newHasher(s.parent.key)
}

// inParent returns where the parent has the page, or nil.
func (s *seen) inParent(h *hasher, sum uint64, data []byte) (*frame, uint8) {
	if s.parent == nil {
		return nil, 0
	}
	return s.parent.find(h, sum, data)
}

// claim returns the origin of the first page with that sum, or makes o the first.
func (s *seen) claim(sum uint64, o origin) (origin, bool) {
	sh := &s.shards[sum>>58]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if first, ok := sh.m[sum]; ok {
		return first, true
	}
	sh.m[sum] = o
	return o, false
}

// nextData returns the next range of f at or after offset that is not a hole; data is
// negative if there is none.
func nextData(f *os.File, offset int64) (data, hole int64, err error) {
	fd := int(f.Fd())
	data, err = unix.Seek(fd, offset, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return -1, 0, nil
	}
	if err != nil {
		return 0, 0, os.NewSyscallError("lseek SEEK_DATA", err)
	}
	hole, err = unix.Seek(fd, data, unix.SEEK_HOLE)
	return data, hole, os.NewSyscallError("lseek SEEK_HOLE", err)
}
