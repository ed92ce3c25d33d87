package queue

// ringMin is the first array of a Ring.
const ringMin = 4 << 10

// Ring is a queue of bytes that stay where they were written: its array grows to what it
// has to hold and is used again from its beginning. The zero value is empty.
type Ring struct {
	array []byte
	from  int // of the first byte
	size  int // bytes held
}

// Space returns room for n bytes, at least one, in two pieces of which the second may be empty.
// What is written there, the first piece first, counts with Commit.
func (r *Ring) Space(n int) (first, second []byte) {
	if r.size == 0 {
		r.from = 0
	}
	if need := r.size + n; need > len(r.array) {
		r.grow(max(need, ringMin))
	}
	to := (r.from + r.size) % len(r.array)
	first = r.array[to:min(to+n, len(r.array))]
	return first, r.array[:n-len(first)]
}

func (r *Ring) grow(need int) {
	size := max(len(r.array), ringMin)
	for size < need {
		size *= 2
	}
	array := make([]byte, size)
	r.Copy(array[:r.size], 0)
	r.array, r.from = array, 0
}

// Commit adds the first n bytes of the last Space.
func (r *Ring) Commit(n int) { r.size += n }

// Copy copies what lies from offset on into p and says how much.
func (r *Ring) Copy(p []byte, offset int) int {
	p = p[:min(len(p), r.size-offset)]
	if len(p) == 0 {
		return 0
	}
	n := copy(p, r.array[(r.from+offset)%len(r.array):])
	return n + copy(p[n:], r.array)
}

// Drop takes the first n bytes away; there must be as many.
func (r *Ring) Drop(n int) {
	r.size -= n
	if r.size == 0 {
		r.from = 0
		return
	}
	r.from = (r.from + n) % len(r.array)
}

// Len is the number of bytes held.
func (r *Ring) Len() int { return r.size }
