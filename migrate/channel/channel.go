// Package channel takes the connections of live moves at a node's peer port and hands them to
// the shims that wait for them, as descriptors: no byte of a VM passes through the daemon. The
// first message says what a connection is for. It is looked at and left in the socket. TLS
// itself is between the two ends.
package channel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/internal/link"
	"godwit.dev/godwit/migrate/connlimit"
)

// helloBound is how long a connection has to say what it is for. How many such there are at once,
// the listener that is taken over bounds (package connlimit).
const helloBound = 10 * time.Second

// Listener is a listener whose connections of live moves go elsewhere.
type Listener struct {
	net.Listener
	socket func(channel string) (string, error)

	others chan net.Conn
	done   chan struct{}
	once   sync.Once
	lines  connlimit.LogLimit
	all    sync.WaitGroup
	failed error // of Accept, before done is closed
}

// Listen takes over inner. socket answers where the shim of a channel waits. What is no
// stream of pages comes out of Accept, as it came in.
func Listen(inner net.Listener, socket func(channel string) (string, error)) *Listener {
	l := &Listener{
		Listener: link.RetryAccept(inner), socket: socket, others: make(chan net.Conn), done: make(chan struct{}),
	}
	l.all.Go(l.accept)
	return l
}

// Accept answers the next connection that is no stream of pages.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.others:
		return c, nil
	case <-l.done:
		return nil, l.failed
	}
}

// Close ends the listener, and the connections whose purpose is not known yet.
func (l *Listener) Close() error {
	err := l.Listener.Close()
	l.all.Wait()
	return err
}

func (l *Listener) accept() {
	defer l.once.Do(func() { close(l.done) })
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			l.failed = err
			return
		}
		l.all.Go(func() { l.route(c) })
	}
}

// route closes c unless somebody has it.
func (l *Listener) route(c net.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), helloBound)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-l.done:
			cancel()
		case <-stop:
		}
	}()
	name, pages, err := Peek(ctx, c)
	if err == nil && !pages {
		select {
		case l.others <- c:
			return
		case <-l.done:
		}
	}
	if err == nil && pages {
		err = l.hand(ctx, c, name)
	}
	c.Close()
	if err != nil && ctx.Err() == nil {
		l.lines.Warn(ctx, "connection for a live move", "from", c.RemoteAddr().String(), "error", err)
	}
}

// hand gives the connection to the shim that waits for it.
func (l *Listener) hand(ctx context.Context, c net.Conn, channel string) error {
	path, err := l.socket(channel)
	if err != nil {
		return err
	}
	return Pass(ctx, c, path)
}

// Pass sends the descriptor of c to the unix socket at path. The caller closes its own.
func Pass(ctx context.Context, c net.Conn, path string) error {
	raw, err := rawOf(c)
	if err != nil {
		return err
	}
	to, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("pass connection to %s: %w", path, err)
	}
	defer to.Close()
	var sent error
	err = raw.Control(func(fd uintptr) {
		_, _, sent = to.(*net.UnixConn).WriteMsgUnix([]byte(version.PagesALPN), unix.UnixRights(int(fd)), nil)
	})
	if err = errors.Join(err, sent); err != nil {
		return fmt.Errorf("pass connection to %s: %w", path, err)
	}
	return nil
}
