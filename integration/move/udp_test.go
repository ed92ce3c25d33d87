//go:build integration

package move

import (
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/observer"
)

// udpPort is where the echoes of a stream go to.
const udpPort = "9997"

// udp is a stream of datagrams to a guest that moves, and what comes back where.
type udp struct {
	t      *testing.T
	conn   net.PacketConn
	ports  *observer.Ports
	to     string
	rate   int
	stream *observer.Stream
}

// newUDP sends 100 datagrams a second, or GODWIT_UDP_RATE: a guest without KVM on a busy
// machine does not always answer 1,000 a second, moved or not. In the ground, whose one processor the guest shares
// with the move, it sends 10.
func newUDP(t *testing.T, h *harness.Harness, to string) *udp {
	t.Helper()
	conn, err := h.ListenPacket(net.JoinHostPort(harness.Gateway, udpPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	sniffers, err := h.SniffAll(9997)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { harness.CloseAll(sniffers) })
	u := &udp{t: t, conn: conn, ports: observer.Hear(sniffers...), to: to, rate: 100}
	if harness.Nested() {
		u.rate = 10
	}
	if text := os.Getenv("GODWIT_UDP_RATE"); text != "" {
		if u.rate, err = strconv.Atoi(text); err != nil || u.rate <= 0 {
			t.Fatalf("GODWIT_UDP_RATE %q", text)
		}
	}
	return u
}

// begin sends from now on.
func (u *udp) begin() {
	u.t.Helper()
	u.ports.Forget()
	var err error
	if u.stream, err = observer.Send(u.t.Context(), u.conn, u.to, u.rate); err != nil {
		u.t.Fatal(err)
	}
	u.sent(max(u.rate/10, 20))
}

// sent waits until that many more have been.
func (u *udp) sent(more int) {
	u.t.Helper()
	for want := u.stream.Sent() + more; u.stream.Sent() < want; {
		if err := observer.Pause(u.t.Context(), 5*time.Millisecond); err != nil {
			u.t.Fatal(err)
		}
	}
}

func (u *udp) quiet() {
	u.t.Helper()
	if err := u.ports.Quiet(u.t.Context(), 500*time.Millisecond); err != nil {
		u.t.Fatal(err)
	}
}

// end wants no more lost than were sent while the guest stood still, and 5. The guest stood still from the last one
// that it answered at its source to its first answer at the destination. None is answered twice, and none by the
// source after that first answer.
func (u *udp) end(from, to int) {
	u.t.Helper()
	u.sent(u.rate / 2)
	n := u.stream.Stop()
	u.quiet()
	c, err := u.ports.Cross(from, to)
	if err != nil {
		u.t.Error(err)
		return
	}
	still, missing := u.stream.During(c.Last.Counter+1, c.First.At), u.ports.Missing(n)
	u.t.Logf("%d datagrams at %d a second: %d lost, %d sent in the %v from the last answer here to the first there", n,
		u.rate, missing, still, c.Gap)
	if missing > still+5 || c.Twice > 0 || c.Late > 0 {
		u.t.Errorf("%d datagrams lost, %d sent meanwhile, %d answered twice, %d from the source too late", missing, still,
			c.Twice, c.Late)
	}
}
