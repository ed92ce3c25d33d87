package format

import (
	"bytes"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/s2"
)

// handmade is a page as a MinLZ block, an element of each kind that docs/dev/protocols/snapshot-format.md has.
var handmade = []byte{
	0, 0x80, 0x20, // 4096 bytes
	1 << 3, 'a', 'b', // literals
	1<<6 | 1<<2 | 1, 0, // a short copy: 5 bytes, 2 before
	29<<3 | 4, 30, // 60 more of it
	61<<2 | 2, 2, 0, 1, // a copy: 65 bytes, 66 before
	2<<5 | 1<<3 | 3, 0, 0, 'c', 'd', // literals and a copy after them: 6 bytes, 64 before
	30<<3 | 4, 0x56, 0x0f, // 3956 more of it
}

func TestMinLZBlock(t *testing.T) {
	want := []byte("ab")
	again := func(offset, n int) {
		for range n {
			want = append(want, want[len(want)-offset])
		}
	}
	again(2, 5+60)
	again(66, 65)
	want = append(want, "cd"...)
	again(64, 6+3956)

	var c Coder
	defer c.Close()
	got, err := c.Unpack(1, MinLZ, handmade)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	for n := range handmade {
		if _, err := c.Unpack(1, MinLZ, handmade[:n]); !errdefs.IsDataLoss(err) {
			t.Errorf("its first %d bytes: %v", n, err)
		}
	}
	if _, err := c.Unpack(1, MinLZ, s2.Encode(nil, want)); !errdefs.IsDataLoss(err) {
		t.Errorf("an S2 block: %v", err)
	}
}
