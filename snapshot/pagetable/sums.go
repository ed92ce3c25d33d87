package pagetable

import (
	"crypto/aes"
	"crypto/cipher"
	"math/bits"
)

// Sums finds entries of a table by their sum: half full at most, and probed in a row. The
// sums are spread already, by a seed that no guest knows.
type Sums struct {
	slots []uint32 // entry + 1; 0: none
	shift uint
}

// NewSums makes one for so many entries.
func NewSums(n int) Sums {
	width := max(4, bits.Len(uint(2*n)))
	return Sums{slots: make([]uint32, 1<<width), shift: uint(64 - width)}
}

// Add keeps the first entry of a sum.
func (s *Sums) Add(all []Entry, i uint32) {
	for at := all[i].Sum >> s.shift; ; at = (at + 1) & uint64(len(s.slots)-1) {
		switch e := s.slots[at]; {
		case e == 0:
			s.slots[at] = i + 1
			return
		case all[e-1].Sum == all[i].Sum:
			return
		}
	}
}

// Find returns the entry of a sum, or nil.
func (s *Sums) Find(all []Entry, sum uint64) *Entry {
	for at := sum >> s.shift; ; at = (at + 1) & uint64(len(s.slots)-1) {
		e := s.slots[at]
		if e == 0 {
			return nil
		}
		if all[e-1].Sum == sum {
			return &all[e-1]
		}
	}
}

// Hasher proves that two pages are equal: GMAC, whose answers for two given pages are the
// same with a chance of 2^-119 over the keys, whatever is in the pages. The key is a
// table's own and stays with its node, and so do the answers: a guest learns of
// neither. It costs a quarter of a hash that must hold against those who know the key.
type Hasher struct {
	aead cipher.AEAD
	sums []byte
}

// macNonce may be the same for all pages, because no answer is ever seen.
var macNonce [12]byte

// NewHasher makes the one of a goroutine.
func NewHasher(key [32]byte) Hasher {
	b, err := aes.NewCipher(key[:])
	if err != nil {
		return Hasher{} // only a key of another length is refused
	}
	aead, err := cipher.NewGCM(b)
	if err != nil {
		return Hasher{} // only a cipher of another block is refused
	}
	return Hasher{aead, make([]byte, 0, 16)}
}

// Sum of a page.
func (h Hasher) Sum(data []byte) [16]byte {
	return [16]byte(h.aead.Seal(h.sums, macNonce[:], nil, data))
}
