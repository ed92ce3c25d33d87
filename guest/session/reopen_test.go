package session

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A channel may take what the host says and bring nothing from the guest. QEMU's does so after a
// restore with bytes of the guest in hand. It is opened anew, and the session goes on over the
// next one. That holds for a session that begins, and for one that has been carried before.
func TestDeafChannelIsOpenedAnew(t *testing.T) {
	for _, used := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			guest := NewListener()
			defer guest.Close()
			deaf, good := make(chan struct{}, 1), make(chan net.Conn, 16)
			if !used {
				deaf <- struct{}{}
			}
			host := Dial(func(context.Context) (io.ReadWriteCloser, error) {
				here, there := net.Pipe()
				select {
				case <-deaf:
					go func() { _, _ = io.Copy(io.Discard, there) }()
				default:
					good <- there
					go func() { _ = guest.Serve(there) }()
				}
				return here, nil
			})
			begun := time.Now()
			accepted := carries(t, host, guest, nil, "first")
			if used {
				deaf <- struct{}{}
				(<-good).Close()
				carries(t, host, guest, accepted, "second")
			}
			if took := time.Since(begun); took > 2*reopenUsed {
				t.Errorf("after %s", took)
			}
			_ = host.Close()
			time.Sleep(time.Minute)
		})
	}
}

// carries sends a word to the guest, which accepts the session if it has none yet.
func carries(t *testing.T, host *Conn, guest *Listener, accepted net.Conn, word string) net.Conn {
	t.Helper()
	if _, err := io.WriteString(host, word); err != nil {
		t.Fatal(err)
	}
	if accepted == nil {
		got := make(chan net.Conn, 1)
		go func() {
			c, err := guest.Accept()
			if err == nil {
				got <- c
			}
		}()
		select {
		case accepted = <-got:
		case <-time.After(5 * time.Minute):
			t.Fatal("the guest has heard nothing for five minutes")
		}
	}
	_ = accepted.SetReadDeadline(time.Now().Add(5 * time.Minute))
	buf := make([]byte, len(word))
	if _, err := io.ReadFull(accepted, buf); err != nil || string(buf) != word {
		t.Fatalf("the guest has %q, %v", buf, err)
	}
	return accepted
}

// A guest that is slow is no deaf channel: each channel that is opened anew gives it twice the time. So the session
// stands after three times what its answer takes at most, however long that is.
func TestSlowGuestIsHeard(t *testing.T) {
	for _, slow := range []time.Duration{time.Second, 3 * time.Second, 9 * time.Second, 31 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			guest := NewListener()
			defer guest.Close()
			host := Dial(func(context.Context) (io.ReadWriteCloser, error) {
				here, there := net.Pipe()
				time.AfterFunc(slow, func() { _ = guest.Serve(there) })
				return here, nil
			})
			begun := time.Now()
			carries(t, host, guest, nil, "word")
			if took := time.Since(begun); took > 3*slow+reopenMin {
				t.Errorf("a guest that answers after %s is heard after %s", slow, took)
			}
			_ = host.Close()
			time.Sleep(2 * time.Minute)
		})
	}
}
