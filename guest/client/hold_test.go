package client

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/internal/turn"
)

// watched counts what an Agent does with its channels.
type watched struct {
	*fake
	dials, reads, closes atomic.Int64
	hangs                atomic.Bool // a dial does not end by itself
}

func (w *watched) dial(ctx context.Context, path string) (net.Conn, error) {
	w.dials.Add(1)
	if w.hangs.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := w.fake.dial(ctx, path)
	return &watchedConn{conn, w}, err
}

type watchedConn struct {
	net.Conn
	w *watched
}

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.w.reads.Add(1)
	}
	return n, err
}

func (c *watchedConn) Close() error {
	c.w.closes.Add(1)
	return c.Conn.Close()
}

func (w *watched) did() [3]int64 { return [3]int64{w.dials.Load(), w.reads.Load(), w.closes.Load()} }

func watch(t *testing.T) (*watched, *Agent) {
	t.Helper()
	w := &watched{fake: newFake(t)}
	a, err := Connect(t.Context(), "", Options{Dial: w.dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); w.listener.Close(); time.Sleep(time.Minute) })
	return w, a
}

// While the channel is held nothing is read from it, and it is neither closed nor opened. Then all goes on.
func TestHold(t *testing.T) {
	for name, during := range map[string]func(a *Agent){
		"the guest answers":         func(*Agent) {},
		"another channel is wanted": func(a *Agent) { a.Move("elsewhere") },
		"it is held twice":          func(a *Agent) { _ = a.Hold(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, a := watch(t)
				waits := make(chan error, 1)
				go func() {
					_, err := a.Wait(t.Context(), &agentv1.WaitRequest{Id: "x"})
					waits <- err
				}()
				synctest.Wait()
				if err := a.Hold(t.Context()); err != nil {
					t.Fatal(err)
				}
				before := w.did()
				close(w.block)
				during(a)
				time.Sleep(time.Minute)
				if now := w.did(); now != before {
					t.Errorf("dials, reads and closes were %v, and are %v", before, now)
				}
				select {
				case err := <-waits:
					t.Errorf("the call is answered: %v", err)
				default:
				}
				a.Release()
				if err := <-waits; err != nil {
					t.Error(err)
				}
				if moved := name == "another channel is wanted"; !moved && w.closes.Load() != before[2] {
					t.Error("the session takes a channel that is held for a guest that is silent")
				}
				a.Release()
				if _, err := a.Info(t.Context(), &agentv1.InfoRequest{}); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The channel of a session that was lost stays open for a moment, next to the one of the next session. Both are held.
func TestHoldOfTwoChannels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var guests []net.Conn
		dial := func(context.Context, string) (net.Conn, error) {
			host, guest := net.Pipe()
			guests = append(guests, guest)
			return host, nil
		}
		a := &Agent{opts: Options{Dial: dial}, opening: turn.New()}
		read := make(chan int, 2)
		for range 2 {
			ch, err := a.dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				n, _ := ch.Read(make([]byte, 8))
				read <- n
			}()
		}
		synctest.Wait()
		if err := a.Hold(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, guest := range guests {
			go func() { _, _ = guest.Write([]byte("x")) }()
		}
		time.Sleep(time.Minute)
		if n := len(read); n > 0 {
			t.Errorf("%d channels are read while they are held", n)
		}
		a.Release()
		for range 2 {
			if n := <-read; n != 1 {
				t.Errorf("%d bytes are read after it", n)
			}
		}
	})
}

// A channel that is being opened is not waited for: a guest that stands still opens none.
func TestHoldWhileAChannelIsOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := watch(t)
		w.hangs.Store(true)
		a.Move("elsewhere")
		time.Sleep(time.Second)
		began := time.Now()
		if err := a.Hold(t.Context()); err != nil || time.Since(began) > 0 {
			t.Errorf("held after %v: %v", time.Since(began), err)
		}
		before := w.did()
		time.Sleep(time.Minute)
		if now := w.did(); now != before {
			t.Errorf("dials, reads and closes were %v, and are %v", before, now)
		}
		w.hangs.Store(false)
		a.Release()
		if _, err := a.Info(t.Context(), &agentv1.InfoRequest{}); err != nil {
			t.Error(err)
		}
	})
}

// An agent that is closed while it is held leaves no channel open.
func TestCloseWhileHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := watch(t)
		if err := a.Hold(t.Context()); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() { a.Close() })
		all.Wait()
		time.Sleep(time.Minute)
		if w.closes.Load() == 0 {
			t.Error("the channel is open")
		}
	})
}
