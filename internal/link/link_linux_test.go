package link

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Both ends of a connection give up what stays unacknowledged for Gone; the kernel alone would
// go on for a quarter of an hour.
func TestBothEndsAreImpatient(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialed, err := Dialer().DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer dialed.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	if err := Watch(accepted); err != nil {
		t.Fatal(err)
	}
	for name, conn := range map[string]net.Conn{"dialed": dialed, "accepted": accepted} {
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			for option, want := range map[int]int{unix.TCP_USER_TIMEOUT: int(Gone.Milliseconds()), unix.TCP_KEEPIDLE: 5,
				unix.TCP_KEEPINTVL: 5, unix.TCP_KEEPCNT: 3} {
				if got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); err != nil || got != want {
					t.Errorf("%s: option %d is %d, %v, want %d", name, option, got, err, want)
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// A connection is mute from the last that was heard of it on.
func TestMute(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	conn := Listen(here)
	defer conn.Close()
	begun := time.Now()
	if !conn.Mute(begun) {
		t.Error("heard of before anything came")
	}
	go func() { _, _ = there.Write([]byte("x")) }()
	if _, err := conn.Read(make([]byte, 1)); err != nil || conn.Mute(begun) {
		t.Errorf("mute after a byte came, %v", err)
	}
	if !conn.Mute(time.Now()) {
		t.Error("not mute after the last byte")
	}
}
