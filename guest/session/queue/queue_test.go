package queue

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// A queue is a slice that is appended to and cut, whatever the sizes.
func TestBytesAreASlice(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		var q Bytes
		var want []byte
		for i := range 300 {
			b := bytes.Repeat([]byte{byte(i)}, r.IntN(1000))
			q.Append(b)
			want = append(want, b...)
			n := r.IntN(len(want) + 1)
			if r.IntN(3) == 0 {
				n = len(want)
			}
			q.Drop(n)
			want = want[n:]
			if q.Len() != len(want) || !bytes.Equal(q.Held(), want) {
				t.Fatalf("seed %d, round %d: %d bytes, not %d, or others", seed, i, q.Len(), len(want))
			}
		}
	}
}

// What flows through a queue that is never empty needs no new array.
func TestBytesReuseTheirArray(t *testing.T) {
	const held, step = 1 << 20, 64 << 10
	var q Bytes
	b := make([]byte, step)
	for q.Len() < held {
		q.Append(b)
	}
	q.Drop(step)
	q.Append(b)
	if n := testing.AllocsPerRun(1000, func() { q.Drop(step); q.Append(b) }); n != 0 {
		t.Fatalf("%v allocations per step", n)
	}
	if cap(q.array) > 2*(held+step) {
		t.Fatalf("an array of %d bytes for %d", cap(q.array), held)
	}
}

func TestEmptyBytesLetALargeArrayGo(t *testing.T) {
	for _, c := range []struct {
		size int
		want bool
	}{{kept / 2, true}, {kept/2 + 1, false}} {
		var q Bytes
		q.Append(make([]byte, c.size))
		q.Drop(c.size)
		if got := q.array != nil; got != c.want || q.Len() != 0 {
			t.Errorf("after %d bytes: kept %v", c.size, got)
		}
	}
}
