package snapshot

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"sync"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// seen finds pages that need no storing: those of tables, and those that this capture has
// met before.
type seen struct {
	seed   uint64 // secret: a guest must not be able to fill one bucket
	tables []*Table
	shards [64]shard
}

type shard struct {
	mu sync.Mutex
	m  map[uint64]origin
}

// origin is where a page was met first.
type origin struct {
	sum    xxh3.Uint128
	space  *area
	offset int64
	frame  *frame
	slot   uint8
}

func newSeen(tables []*Table) *seen {
	s := &seen{seed: rand.Uint64(), tables: tables}
	if len(tables) > 0 {
		s.seed = tables[0].seed
	}
	for i := range s.shards {
		s.shards[i].m = map[uint64]origin{}
	}
	return s
}

// hashers are those of one goroutine, one for each table.
func (s *seen) hashers() []hasher {
	list := make([]hasher, len(s.tables))
	for i, t := range s.tables {
		list[i] = newHasher(t.key)
	}
	return list
}

// stored returns where a table has the page, or nil. Sum is by the seed of the first one:
// what that has needs no second hash.
func (s *seen) stored(h []hasher, sum uint64, data []byte) (*frame, uint8) {
	for i, t := range s.tables {
		if t.seed != s.seed {
			sum = xxh3.HashSeed(data, t.seed)
		}
		if f, slot := t.find(&h[i], sum, data); f != nil {
			return f, slot
		}
	}
	return nil, 0
}

// claim returns the origin of the first page with the sum of o, or makes o the first.
func (s *seen) claim(o origin) (origin, bool) {
	sh := &s.shards[o.sum.Lo>>58]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if first, ok := sh.m[o.sum.Lo]; ok {
		return first, true
	}
	sh.m[o.sum.Lo] = o
	return o, false
}

// replace makes o the first: the page that was is another by now.
func (s *seen) replace(o origin) {
	sh := &s.shards[o.sum.Lo>>58]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.m[o.sum.Lo] = o
}

// nextData returns the next range of f at or after offset that is not a hole; data is
// negative if there is none.
func nextData(f *os.File, offset int64) (data, hole int64, err error) {
	data, err = seekData(f, offset)
	if err != nil || data == noData {
		return -1, 0, err
	}
	hole, err = unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
	return data, hole, os.NewSyscallError("lseek SEEK_HOLE", err)
}

// noData is behind all data.
const noData = math.MaxInt64

// seekData returns where the next data at or after offset is.
func seekData(f *os.File, offset int64) (int64, error) {
	data, err := unix.Seek(int(f.Fd()), offset, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return noData, nil
	}
	return data, os.NewSyscallError("lseek SEEK_DATA", err)
}
