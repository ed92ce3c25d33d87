package agentd

import (
	"testing"

	"pgregory.net/rapid"

	"godwit.dev/godwit/guest/session"
)

// The host may want, confirm and ask again for anything while the process writes. A lane brings
// each byte at its offset, none before it is wanted, and the end after all.
func TestLaneOfOutput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newOutput(func() {})
		var written, have, next, limit uint64 // of the process; of the host
		ended := false
		text := func(at uint64) byte { return byte(at*7 + at>>8) }
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				if o.eof {
					t.Skip("it has ended")
				}
				n := rapid.IntRange(1, 9000).Draw(t, "bytes")
				space, _ := o.data.Space(min(n, max(1, outputSize-o.data.Len())))
				for i := range space {
					space[i] = text(written + uint64(i))
				}
				o.data.Commit(len(space))
				written += uint64(len(space))
			},
			"end": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "often") == 0 {
					o.end()
				}
			},
			"confirm": func(t *rapid.T) {
				have = rapid.Uint64Range(have, next).Draw(t, "have")
				limit = have + rapid.Uint64Range(1, 20000).Draw(t, "limit")
				o.Want(session.Want{Have: have, From: next, Limit: limit})
			},
			"again": func(t *rapid.T) {
				o.Want(session.Want{}) // a new channel
				next, ended = rapid.Uint64Range(have, next).Draw(t, "from"), false
				limit = have + rapid.Uint64Range(1, 20000).Draw(t, "limit")
				o.Want(session.Want{Have: have, From: next, Limit: limit, Again: true})
			},
			"next": func(t *rapid.T) {
				p := make([]byte, rapid.IntRange(1, 9000).Draw(t, "room"))
				piece, ok := o.Next(p)
				switch {
				case !ok && next < min(limit, written):
					t.Fatalf("nothing at %d of %d, up to %d are wanted", next, written, limit)
				case !ok && limit > 0 && o.eof && next == written && !ended:
					t.Fatalf("the end at %d is not told", written)
				case !ok:
					return
				case piece.At != next || piece.Skip || piece.Gone || piece.Len > len(p) || ended:
					t.Fatalf("%+v at %d, after the end: %v", piece, next, ended)
				case piece.Len > 0 && next+uint64(piece.Len) > limit:
					t.Fatalf("%+v, up to %d are wanted", piece, limit)
				}
				for i, b := range p[:piece.Len] {
					if b != text(next+uint64(i)) {
						t.Fatalf("another byte at %d", next+uint64(i))
					}
				}
				next += uint64(piece.Len)
				if ended = piece.End; ended && (next != written || !o.eof) {
					t.Fatalf("an end at %d of %d", next, written)
				}
			},
		})
	})
}
