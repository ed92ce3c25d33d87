package queue

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// A ring behaves as a slice that is written to and cut, whatever the sizes. It never has more
// than twice what it was asked to hold.
func TestRingIsASlice(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		var q Ring
		var want []byte
		most := ringMin
		for i := range 300 {
			size := 1 + r.IntN(3000)
			first, second := q.Space(size)
			if len(first)+len(second) != size {
				t.Fatalf("seed %d, round %d: room for %d and %d, not %d", seed, i, len(first), len(second), size)
			}
			written := make([]byte, r.IntN(size+1))
			for j := range written {
				written[j] = byte(i + j)
			}
			copy(second, written[copy(first, written):])
			q.Commit(len(written))
			want = append(want, written...)
			most = max(most, 2*(len(want)+3000))
			at := r.IntN(len(want) + 1)
			got := make([]byte, r.IntN(len(want)+2))
			got = got[:q.Copy(got, at)]
			if !bytes.HasPrefix(want[at:], got) {
				t.Fatalf("seed %d, round %d: other bytes from %d", seed, i, at)
			}
			all := make([]byte, len(want)+1)
			if n := q.Copy(all, 0); q.Len() != len(want) || !bytes.Equal(all[:n], want) {
				t.Fatalf("seed %d, round %d: %d bytes, not %d, or others", seed, i, q.Len(), len(want))
			}
			cut := r.IntN(len(want) + 1)
			q.Drop(cut)
			want = want[cut:]
		}
		if len(q.array) > most {
			t.Fatalf("seed %d: an array of %d for at most %d", seed, len(q.array), most)
		}
	}
}
