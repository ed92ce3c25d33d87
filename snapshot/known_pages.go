package snapshot

import (
	"math/rand/v2"
	"sync"

	"github.com/zeebo/xxh3"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/pagetable"
)

// knownPages finds pages that need no storing: those of tables, and those that this capture has
// met before.
type knownPages struct {
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
	place
	frame *frame
	slot  uint8
}

// same compares with the page that was seen first: a fast hash finds candidates, bytes
// decide, because a guest can make hashes collide. A page that has changed since proves
// nothing.
func (o origin) same(sum xxh3.Uint128, data []byte, buf *[format.PageSize]byte) (bool, error) {
	if o.sum != sum || o.frame.dropped {
		return false, nil
	}
	return o.area.Same(int64(o.page)*format.PageSize, (*[format.PageSize]byte)(data), buf)
}

func newKnownPages(tables []*Table) *knownPages {
	s := &knownPages{seed: rand.Uint64(), tables: tables}
	if len(tables) > 0 {
		s.seed = tables[0].seed
	}
	for i := range s.shards {
		s.shards[i].m = map[uint64]origin{}
	}
	return s
}

// hashers are those of one goroutine, one for each table.
func (s *knownPages) hashers() []pagetable.Hasher {
	list := make([]pagetable.Hasher, len(s.tables))
	for i, t := range s.tables {
		list[i] = pagetable.NewHasher(t.key)
	}
	return list
}

// stored returns where a table has the page, or nil. Sum is by the seed of the first one:
// what that has needs no second hash.
func (s *knownPages) stored(h []pagetable.Hasher, sum uint64, data []byte) (*frame, uint8) {
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
func (s *knownPages) claim(o origin) (origin, bool) {
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
func (s *knownPages) replace(o origin) {
	sh := &s.shards[o.sum.Lo>>58]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.m[o.sum.Lo] = o
}
