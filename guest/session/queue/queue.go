// Package queue holds the bytes that one end has handed over and the other has not
// confirmed.
package queue

// kept is the largest array that an empty queue holds on to: a stream that flows empties
// its queue often, and a new array each time costs more than the bytes in it.
const kept = 1 << 20

// Bytes is a queue of bytes that are next to each other in memory. The zero value is empty.
// However long the queue is, a byte is copied at most twice on average. The array is at most
// twice as large as what the queue has held.
type Bytes struct {
	array []byte // dropped, then held
	from  int    // held begins here
}

// Append adds b. What Held returned before is no longer valid.
func (q *Bytes) Append(b []byte) {
	if len(q.array)+len(b) > cap(q.array) {
		to, need := q.array[:0], 2*(q.Len()+len(b))
		if need > cap(q.array) {
			to = make([]byte, 0, need)
		}
		// At least half of the array is free now: the next move is as far away as this
		// one was long.
		q.array, q.from = append(to, q.Held()...), 0
	}
	q.array = append(q.array, b...)
}

// Drop takes the first n bytes away; there must be as many.
func (q *Bytes) Drop(n int) {
	q.from += n
	if q.Len() > 0 {
		return
	}
	q.from = 0
	q.array = q.array[:0]
	if cap(q.array) > kept {
		q.array = nil
	}
}

// Held returns the bytes, first in first; it is valid until the next Append.
func (q *Bytes) Held() []byte { return q.array[q.from:] }

// Len is the number of bytes held.
func (q *Bytes) Len() int { return len(q.array) - q.from }
