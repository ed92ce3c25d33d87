package snapshot

import (
	"crypto/aes"
	"crypto/cipher"
	"math/bits"
)

// sums finds entries of a table by their sum: half full at most, and probed in a row. The
// sums are spread already, by a seed that no guest knows.
type sums struct {
	slots []uint32 // entry + 1; 0: none
	shift uint
}

func newSums(n int) sums {
	width := max(4, bits.Len(uint(2*n)))
	return sums{slots: make([]uint32, 1<<width), shift: uint(64 - width)}
}

// add keeps the first entry of a sum.
func (s *sums) add(all []entry, i uint32) {
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

func (s *sums) find(all []entry, sum uint64) *entry {
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

// hasher proves that two pages are equal: GMAC, whose answers for two given pages are the
// same with a chance of 2^-119 over the keys, whatever is in the pages. The key is a
// table's own and stays with its node, and so do the answers: who makes pages learns of
// neither. It costs a quarter of a hash that must hold against those who know the key.
type hasher struct {
	aead cipher.AEAD
	sums []byte
}

// macNonce may be the same for all pages, because no answer is ever seen.
var macNonce [12]byte

func newHasher(key [32]byte) hasher {
	b, err := aes.NewCipher(key[:])
	if err != nil {
		return hasher{} // only a key of another length is refused
	}
	aead, err := cipher.NewGCM(b)
	if err != nil {
		return hasher{} // only a cipher of another block is refused
	}
	return hasher{aead, make([]byte, 0, 16)}
}

func (h hasher) sum(data []byte) [16]byte {
	return [16]byte(h.aead.Seal(h.sums, macNonce[:], nil, data))
}
