package precopy

import "math/bits"

// Mask is a set of pages of a block.
type Mask [BlockPages / 64]uint64

// Set adds a page.
func (m *Mask) Set(i int) { m[i/64] |= 1 << (i % 64) }

// Has reports whether a page is in the set.
func (m *Mask) Has(i int) bool { return m[i/64]&(1<<(i%64)) != 0 }

// Empty reports whether no page is.
func (m *Mask) Empty() bool { return *m == Mask{} }

func (m *Mask) unset(i int) { m[i/64] &^= 1 << (i % 64) }

// Count is how many pages are in the set.
func (m *Mask) Count() (n int) {
	for _, w := range m {
		n += bits.OnesCount64(w)
	}
	return n
}

// setRange sets pages from, up to but not including to.
func (m *Mask) setRange(from, to int) {
	for w := from / 64; w <= (to-1)/64; w++ {
		lo, hi := max(from-64*w, 0), min(to-64*w, 64)
		m[w] |= ^uint64(0) << lo & (^uint64(0) >> (64 - hi))
	}
}

func (m *Mask) and(o *Mask) (r Mask) {
	for i := range m {
		r[i] = m[i] & o[i]
	}
	return r
}

func (m *Mask) or(o *Mask) (r Mask) {
	for i := range m {
		r[i] = m[i] | o[i]
	}
	return r
}

func (m *Mask) without(o *Mask) (r Mask) {
	for i := range m {
		r[i] = m[i] &^ o[i]
	}
	return r
}

// Runs calls do for each run of pages that are set.
func (m *Mask) Runs(do func(from, to int) error) error {
	for at := 0; at < BlockPages; at++ {
		if !m.Has(at) {
			continue
		}
		from := at
		for at < BlockPages && m.Has(at) {
			at++
		}
		if err := do(from, at); err != nil {
			return err
		}
	}
	return nil
}
