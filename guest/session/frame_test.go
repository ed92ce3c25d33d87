package session

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func testFrames() []frame {
	return []frame{
		{kind: typeHello, version: Version, nonce: 1, seq: 7, limit: window},
		{kind: typeData, version: Version, nonce: 1, seq: 0, recv: 3, limit: 9, payload: []byte("hello")},
		{kind: typeData, version: Version, nonce: 1, seq: 5, payload: bytes.Repeat([]byte("GDWT"), maxPayload/4)},
		{kind: typeAck, version: Version, nonce: 1, recv: 1 << 40},
	}
}

// decodeAll feeds b in pieces of size bytes.
func decodeAll(b []byte, size int) (out []frame) {
	var d decoder
	for len(b) > 0 {
		n := min(size, len(b))
		d.feed(b[:n])
		b = b[n:]
		for f, ok := d.next(); ok; f, ok = d.next() {
			f.payload = append([]byte(nil), f.payload...)
			out = append(out, f)
		}
	}
	return out
}

func TestDecoderSkipsGarbageAndCuts(t *testing.T) {
	frames := testFrames()
	var whole []byte
	for i := range frames {
		whole = append(whole, "garbage GDWT GDW"...)
		cut := frames[2].appendTo(nil)
		whole = append(whole, cut[:len(cut)/2]...)
		whole = frames[i].appendTo(whole)
	}
	// The last cut frame may still wait for its payload: padding completes it.
	whole = append(whole, make([]byte, frameSize)...)
	for _, size := range []int{1, 7, 4096, len(whole)} {
		got := decodeAll(whole, size)
		if d := cmp.Diff(frames, got, cmp.AllowUnexported(frame{})); d != "" {
			t.Fatalf("pieces of %d: %s", size, d)
		}
	}
}

func TestDecoderRefusesFlippedBits(t *testing.T) {
	f := testFrames()[1]
	good := f.appendTo(nil)
	for i := range 8 * len(good) {
		bad := bytes.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		if got := decodeAll(bad, len(bad)); len(got) != 0 {
			t.Fatalf("bit %d: %+v", i, got)
		}
	}
}

// Whatever comes, a sound frame after enough padding is found, and memory is bounded.
func FuzzDecoder(f *testing.F) {
	for _, fr := range testFrames() {
		f.Add(fr.appendTo(nil), 13)
	}
	f.Add([]byte("GDWTGDWT"), 1)
	last := frame{kind: typeHello, version: Version, nonce: 99, seq: 4}
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		if size <= 0 || len(b) > 64<<10 {
			return
		}
		b = append(bytes.Clone(b), make([]byte, frameSize)...)
		got := decodeAll(last.appendTo(b), size)
		if len(got) == 0 || got[len(got)-1].nonce != last.nonce {
			t.Fatalf("the last frame was not found")
		}
		var d decoder
		for i := range 4 {
			d.feed(b[:min(len(b), readSize)])
			for _, ok := d.next(); ok; _, ok = d.next() {
			}
			if d.buf.Len() > frameSize+readSize {
				t.Fatalf("round %d holds %d bytes", i, d.buf.Len())
			}
		}
	})
}
