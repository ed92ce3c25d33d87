package session

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/containerd/errdefs"
)

// A hello is repeated until it is answered, first soon, then ever more slowly. A guest that has
// not been heard for quietMin is asked again, since it cannot know that its last words were
// lost. While that brings nothing, it is asked ever more rarely.
const (
	helloMin  = 20 * time.Millisecond
	helloMax  = 500 * time.Millisecond
	redialMin = 5 * time.Millisecond
	redialMax = 200 * time.Millisecond
	quietMin  = time.Second
	quietMax  = 30 * time.Second
	graceTime = 200 * time.Millisecond // for the peer to hear that we closed
)

// A channel on which hellos go out and nothing comes back is opened anew, first soon, then ever
// more slowly. QEMU may be restored with bytes of the guest in hand, before any host is
// connected. It then drops them and takes no more from the guest, until the channel is closed. A
// channel that has carried the session is left alone for longer: its guest may stand still.
const (
	reopenMin  = 2 * time.Second
	reopenMax  = time.Minute
	reopenUsed = 10 * time.Second
)

// DialFunc opens the channel once.
type DialFunc func(ctx context.Context) (io.ReadWriteCloser, error)

// Dial begins a session of the host. It returns at once. The session opens a channel with dial,
// and a new one whenever that fails. It does so until the Conn is closed or ended by the guest.
func Dial(dial DialFunc) *Conn {
	c := newConn(rand.Uint64())
	ctx, cancel := context.WithCancel(context.Background())
	h := &host{Conn: c, dial: dial, reopen: reopenMin}
	c.onClose = func() { time.AfterFunc(graceTime, cancel) }
	go func() {
		defer cancel()
		h.run(ctx)
	}()
	return c
}

// host keeps a session on a channel.
type host struct {
	*Conn
	dial DialFunc

	// Guarded by the Conn's lock.
	asking bool      // a hello of this epoch is not answered yet
	heard  time.Time // when a frame of the stream came last

	reopen time.Duration // of the next channel that stays silent; sendHellos's own
}

func (h *host) run(ctx context.Context) {
	for wait := redialMin; !h.isDone(); {
		ch, err := h.dial(ctx)
		if err != nil {
			if !sleep(ctx, wait) {
				return
			}
			wait = min(2*wait, redialMax)
			continue
		}
		began := time.Now()
		h.serve(ctx, newLink(ch))
		if time.Since(began) > redialMax {
			wait = redialMin
		} else if !sleep(ctx, wait) { // a channel that fails at once
			return
		} else {
			wait = min(2*wait, redialMax)
		}
	}
}

// isDone reports whether the session needs no channel any more.
func (h *host) isDone() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err != nil || h.finished || h.closed && h.link == nil
}

// serve carries the session on l until the channel fails or the session is over.
func (h *host) serve(ctx context.Context, l *link) {
	stop := context.AfterFunc(ctx, l.close)
	defer stop()
	hello := make(chan struct{})
	go func() {
		defer close(hello)
		h.sendHellos(l)
	}()
	_ = l.run(func(f frame) { h.handle(l, f) })
	<-hello
	l.detach(h.Conn)
}

// sendHellos sends hellos until one is answered, and again when the guest is quiet.
func (h *host) sendHellos(l *link) {
	wait, quiet, padding, asked := helloMin, quietMin, 0, time.Now()
	var silent time.Time // since when hellos are taken and not answered; zero: they are
	h.ask(l)
	for {
		select {
		case <-l.done:
			return
		case <-time.After(wait):
		}
		if l.unread() { // a guest that boots need not find one for every moment of it
			wait = min(2*wait, helloMax)
			continue
		}
		if l.held() { // that nothing comes back says nothing of the guest
			silent = time.Time{}
			continue
		}
		h.mu.Lock()
		attached, asking, heard := h.link == l, h.asking, h.heard
		h.mu.Unlock()
		if heard.After(asked) {
			quiet = quietMin
		}
		switch {
		case attached && !asking:
			silent, h.reopen = time.Time{}, reopenMin
		case silent.IsZero():
			silent = time.Now()
		case time.Since(silent) >= h.reopen && (!attached || time.Since(silent) >= reopenUsed):
			h.reopen = min(2*h.reopen, reopenMax)
			l.close()
			return
		}
		switch {
		case !attached:
			padding = frameSize // completes a frame that the channel has cut
			fallthrough
		case asking:
			wait = min(2*wait, helloMax)
			h.hello(l, padding)
		case time.Since(asked) > quiet && time.Since(heard) > quiet:
			wait, padding, quiet, asked = helloMin, 0, min(2*quiet, quietMax), time.Now()
			h.ask(l)
		default:
			wait = helloMax
		}
	}
}

// ask begins a new epoch: the answer to its hello brings the ends together.
func (h *host) ask(l *link) {
	h.mu.Lock()
	h.epoch++
	h.asking = true
	h.mu.Unlock()
	h.hello(l, 0)
}

func (h *host) greeting() frame {
	f := h.stamp(typeHello)
	f.seq, f.features = h.epoch, featureBulk
	return f
}

func (h *host) hello(l *link, padding int) {
	h.mu.Lock()
	f := h.greeting()
	h.mu.Unlock()
	l.control(f, padding)
}

// handle does what a frame from the guest says. Until our hello is answered everything
// else may be left over from an earlier channel.
func (h *host) handle(l *link, f frame) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.nonce != h.nonce || h.err != nil {
		return
	}
	switch {
	case f.version != Version:
		h.end(fmt.Errorf("guest speaks session protocol %d, not %d: %w", f.version, Version, errdefs.ErrFailedPrecondition))
	case f.kind == typeReset:
		h.end(ErrReset)
	case f.kind == typeHello && f.seq == h.epoch:
		if !h.rewind(f.recv, f.limit) {
			h.end(ErrReset)
			break
		}
		h.asking = false
		h.features = f.features & featureBulk
		h.askAgain()
		l.attach(h.Conn)
	case h.link != l:
	case f.kind == typeFinish:
		h.end(io.EOF)
	case f.kind == typeData || f.kind == typeAck:
		h.heard = time.Now()
		if !h.confirm(f.recv, f.limit) {
			h.end(ErrReset)
		} else if f.kind == typeData && h.accept(f) {
			h.resync(l)
		}
	case f.kind == typeBulk:
		h.heard = time.Now()
		if h.bulk(f) {
			h.resync(l)
		}
	}
	if h.err != nil {
		l.close()
	}
}

// resync says hello again, which brings the ends together. sendHellos repeats it if it is lost.
func (h *host) resync(l *link) {
	if h.asking {
		return
	}
	h.epoch++
	h.asking = true
	l.control(h.greeting(), 0)
}

// sleep waits and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
