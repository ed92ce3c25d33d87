package session

import (
	"io"
	"testing"
)

// deaf is a channel that takes everything and says nothing.
type deaf struct{ closed chan struct{} }

func (d deaf) Read([]byte) (int, error)    { <-d.closed; return 0, io.EOF }
func (d deaf) Write(b []byte) (int, error) { return len(b), nil }
func (d deaf) Close() error {
	select {
	case <-d.closed:
	default:
		close(d.closed)
	}
	return nil
}

// FuzzHost has the host obey any frames of a guest that knows the session. Whatever they say,
// neither the buffers of the session nor those of a lane outgrow their windows. No offset
// exceeds what it counts.
func FuzzHost(f *testing.F) {
	f.Add([]byte{1, 1, 0, 0, 0, 2, 1, 0, 0, 9})
	f.Add([]byte{1, 1, 0, 0, 255, 3, 1, 0, 200, 0, 2, 1, 255, 255, 255})
	f.Add([]byte{1, 0, 0, 4, 9, 7, 1, 4, 1, 0, 7, 255, 9, 1, 2, 7, 3, 4, 1, 1})
	f.Fuzz(func(t *testing.T, script []byte) {
		c := newConn(7)
		lane, at := c.Lane([]byte("out"), 100), uint64(100)
		h := &host{Conn: c, asking: true}
		c.epoch = 1
		l := newLink(deaf{make(chan struct{})})
		defer l.close()
		c.out.Append(make([]byte, 1000))
		for ; len(script) >= 5; script = script[5:] {
			// Each number is near to one that means something, or far from all.
			near := func(b byte, base uint64) uint64 {
				if b >= 250 {
					return ^uint64(0) - uint64(255-b)
				}
				return base + uint64(b) - 4
			}
			fr := frame{
				kind: frameType(script[0] % 8), version: Version, nonce: c.nonce,
				seq: near(script[2], c.inNext), recv: near(script[3], c.outSent), limit: near(script[4], c.outLimit),
				payload: make([]byte, int(script[1])*128%maxPayload),
			}
			if fr.kind == typeHello && script[1]%2 == 0 {
				fr.seq = h.epoch
			}
			if fr.kind == typeBulk {
				fr.recv, fr.seq, fr.limit = uint64(script[3]%3), near(script[2], lane.next), uint64(script[4])
			}
			h.handle(l, fr)
			if script[0] >= 128 { // now and then somebody reads
				data, from, _, err := lane.take(at, 1+int(script[1])*100)
				if err == nil && from < at {
					t.Fatalf("read at %d, not from %d on", from, at)
				}
				at = from + uint64(len(data))
			}
			_ = l.batch(nil)
			switch {
			case c.in.Len() > window || c.out.Len() > window:
				t.Fatalf("%d bytes in, %d out", c.in.Len(), c.out.Len())
			case c.err == nil && (c.outSent < c.outBase || c.outSent > c.outBase+uint64(c.out.Len())):
				t.Fatalf("sent %d of %d to %d", c.outSent, c.outBase, c.outBase+uint64(c.out.Len()))
			case len(lane.data) > laneWindow:
				t.Fatalf("a lane holds %d bytes", len(lane.data))
			case c.inNext < uint64(c.in.Len()):
				t.Fatalf("%d received, %d held", c.inNext, c.in.Len())
			}
		}
	})
}
