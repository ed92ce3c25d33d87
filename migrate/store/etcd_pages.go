package store

import (
	"math/big"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	etcd "go.etcd.io/etcd/client/v3"
)

// Bounds of a page.
const (
	firstPage = 256       // keys, while it is not known how large their values are
	leastPage = 16        // keys
	mostPage  = 4096      // keys
	pageBytes = 256 << 10 // of values, about: a list needs no more memory than this in addition to its answer
)

// pager reads a range of keys page by page. For each request etcd counts all keys of the range that
// the request names, those beyond its limit too (treeIndex.Revisions of its mvcc/index.go). With
// the whole range in each request, n keys cost n*n. So a request names a stretch that holds little
// more than a page, by how far apart the keys of the page before were.
type pager struct {
	from, end string // what is left to read
	pace      pace
	room      int64 // bytes of values that are wanted still; 0: all
	empty     uint  // requests in a row that found nothing
}

// pace is how fast a pager goes through its range.
type pace struct {
	width *big.Int // of a stretch, as the difference of two positions; nil: all that is left
	limit int64    // keys
}

// newPager is for the keys below a prefix that come after one of them (empty: all).
func newPager(prefix, after string) *pager {
	p := &pager{from: prefix, end: etcd.GetPrefixRangeEnd(prefix), pace: pace{limit: firstPage}}
	if after != "" {
		p.from += after + "\x00"
	}
	return p
}

// keyDigits is how many bytes of a key its position has. Longer keys that differ only after them are
// read as one stretch.
const keyDigits = 256

// position of a key among all keys: its bytes are the digits of a number.
func position(key string) *big.Int {
	var digits [keyDigits]byte
	copy(digits[:], key)
	return new(big.Int).SetBytes(digits[:])
}

// to is the end of the next stretch.
func (p *pager) to() string {
	if p.pace.width == nil {
		return p.end
	}
	at := new(big.Int).Add(position(p.from), p.pace.width)
	if at.BitLen() > 8*keyDigits {
		return p.end
	}
	to := strings.TrimRight(string(at.FillBytes(make([]byte, keyDigits))), "\x00")
	if to <= p.from || to >= p.end {
		return p.end
	}
	return to
}

// limit is how many keys the next request reads.
func (p *pager) limit() int64 {
	if p.room <= 0 {
		return p.pace.limit
	}
	return min(p.pace.limit, p.room*p.pace.limit/pageBytes+1)
}

// took goes on after what was found up to there, and reports whether anything is left. more says
// that the stretch has more than that.
func (p *pager) took(found []*mvccpb.KeyValue, to string, more bool) bool {
	if p.from = to; more {
		p.from = string(found[len(found)-1].Key) + "\x00"
	}
	bytes := int64(0)
	for _, kv := range found {
		bytes += int64(len(kv.Value))
	}
	if p.room > 0 {
		p.room = max(p.room-bytes, 1)
	}
	switch n := len(found); {
	case n > 1:
		p.pace.limit = min(max(int64(n)*pageBytes/max(bytes, 1), leastPage), mostPage)
		width := position(string(found[n-1].Key))
		width.Sub(width, position(string(found[0].Key)))
		width.Mul(width, big.NewInt(3*p.pace.limit/2))
		p.pace.width = width.Div(width, big.NewInt(int64(n-1)))
		p.empty = 0
	case p.empty < 6 && p.pace.width != nil: // a gap, which may be wide
		p.empty++
		p.pace.width = new(big.Int).Lsh(p.pace.width, 3)
	default:
		p.pace.width = nil
	}
	return more || to != p.end
}
