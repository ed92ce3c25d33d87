package snapshot

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"godwit.dev/godwit/snapshot/stream"
)

// loose is one direction of a connection that takes all at once and gives it slowly.
type loose struct {
	mu     sync.Mutex
	more   *sync.Cond
	data   bytes.Buffer
	closed bool
}

func newLoose() *loose {
	l := &loose{}
	l.more = sync.NewCond(&l.mu)
	return l
}

func (l *loose) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.more.Broadcast()
	return l.data.Write(p)
}

func (l *loose) Read(p []byte) (int, error) {
	time.Sleep(200 * time.Microsecond)
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.data.Len() == 0 {
		if l.closed {
			return 0, io.EOF
		}
		l.more.Wait()
	}
	return l.data.Read(p[:min(len(p), 16<<10)])
}

func (l *loose) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.more.Broadcast()
	return nil
}

func (l *loose) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.data.Len()
}

// duplex is an end of a connection of two directions.
type duplex struct {
	io.ReadCloser
	to *loose
}

func (d duplex) Write(p []byte) (int, error) { return d.to.Write(p) }

func (d duplex) Close() error {
	d.to.Close()
	return d.ReadCloser.Close()
}

// onTheWay tells what is on its way when the VM is paused.
type onTheWay struct {
	Live
	way     *loose
	waiting int
}

func (p *onTheWay) Pause(ctx context.Context) error {
	p.waiting = p.way.waiting()
	return p.Live.Pause(ctx)
}

// What is still on its way when the VM stands still, its pause waits for: a VM that is sent
// faster than it is taken is paused when all that was sent is there. To a destination that
// does not say so it goes as before.
func TestSendPausesWhenAllIsThere(t *testing.T) {
	for name, older := range map[string]bool{"answers": false, "of a build before": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 44)
			g := newGuest(w, 3)
			close(g.stopped)
			a := newArrival(t, w, false)
			there, here := newLoose(), newLoose()
			var back io.ReadCloser = here
			if older {
				back = mute(t, here)
			}
			o := w.sending(g, &model{guest: g, between: true})
			p := &onTheWay{Live: o.Live, way: there, waiting: -1}
			o.Live = p
			sent, err, rerr := move(t, w, a, o, duplex{back, there}, duplex{there, here})
			if err != nil || rerr != nil {
				t.Fatal(err, rerr)
			}
			a.check(t, w, g, sent)
			if !older && p.waiting != 0 { // of the other some are, as a rule
				t.Errorf("%d bytes were on their way at the pause", p.waiting)
			}
		})
	}
}

// mute passes on what a destination says that answers no barrier.
func mute(t *testing.T, from io.Reader) io.ReadCloser {
	r, to := io.Pipe()
	go func() {
		in, out := stream.NewReader(from, 2), stream.NewWriter(to, 0)
		accept, err := in.Accept()
		if err == nil {
			accept.Reached = false
			err = out.JSON(t.Context(), stream.KindAccept, accept)
		}
		var ready stream.Ready
		if err == nil {
			ready, err = in.Ready(func(uint64) {})
		}
		if err == nil {
			err = out.JSON(t.Context(), stream.KindReady, ready)
		}
		if err != nil {
			t.Error(err)
		}
		to.Close()
	}()
	return r
}
