//go:build integration

package agent

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/vmm/cloudhypervisor"
)

// busy is a host that does not get round to read its channels while it is held.
type busy struct {
	sync.RWMutex
	conn          atomic.Pointer[net.UnixConn]
	queued, looks int
}

func (b *busy) dial(ctx context.Context, path string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	b.conn.Store(c.(*net.UnixConn))
	return &busyConn{c, b}, nil
}

// stillLooks are as many looks, in a row, as find a socket still whose guest has nothing more to send to it.
const stillLooks = 100

// full reports whether the guest has filled the socket: something is in it, and no more comes.
func (b *busy) full() bool {
	raw, err := b.conn.Load().SyscallConn()
	if err != nil {
		return false
	}
	queued := 0
	err = raw.Control(func(fd uintptr) { queued, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) })
	if b.looks++; err != nil || queued != b.queued {
		b.queued, b.looks = queued, 0
	}
	return queued > 0 && b.looks >= stillLooks
}

type busyConn struct {
	net.Conn
	busy *busy
}

func (c *busyConn) Read(b []byte) (int, error) {
	c.busy.RLock()
	defer c.busy.RUnlock()
	return c.Conn.Read(b)
}

// A VM is saved while its host does not read, so that the VMM holds bytes of the guest that its
// socket did not take. The restored VM is heard by a host that comes after it runs. QEMU drops
// such bytes, and then all that follow, until the channel is opened once more.
func TestRestoredWithFullChannel(t *testing.T) {
	if harness.VMM() == cloudhypervisor.Name {
		t.Skip("its channel is a vsock, which no restore keeps")
	}
	m := newMachine(t).boot().setup(nil).init()
	m.agent.Close()
	b := &busy{}
	a, err := client.Connect(t.Context(), m.socket(), client.Options{Dial: b.dial, Console: m.console})
	if err != nil {
		t.Fatal(err)
	}
	m.agent = a
	if err := m.start("count", process("sh", "-c", "i=0; while true; do echo line $i; i=$((i+1)); done")); err != nil {
		t.Fatal(err)
	}
	before, err := m.agent.Info(t.Context(), &agentv1.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var counted lines
	count := m.carry("count", client.Offsets{}, nil, &counted)
	for round := range 3 {
		was := counted.next.Load()
		m.until(func() bool { return counted.next.Load() > was })
		b.Lock()
		m.until(b.full)
		m.move(func() {}, func() {
			time.Sleep(time.Second)
			b.Unlock()
			m.agent.Move(m.socket())
		})
		m.restored(before, round, 2)
		if bad := counted.bad.Load(); bad != nil {
			t.Fatalf("round %d: %s", round, *bad)
		}
	}
	count.halt(t)
}
