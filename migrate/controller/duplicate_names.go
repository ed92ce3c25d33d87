package controller

import (
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// DuplicateNames tells two machines that go by one name: live connections whose certificates differ. The one
// that was issued last counts, for it is what the operator did last: connections of the other are
// closed, and refused while one of it lives. So a node that renews its certificate goes on.
type DuplicateNames struct {
	Told func(node, reason string) // once for each certificate; nil: not told

	mu    sync.Mutex
	names map[string]*namedCert
	said  map[[sha256.Size]byte]bool
	last  map[string]time.Time // when a connection was refused
}

// namedCert is the certificate of a name, and its live connections.
type namedCert struct {
	print [sha256.Size]byte
	since time.Time
	conns []net.Conn
}

// Refused are the names of which a second machine was refused within the last while.
func (d *DuplicateNames) Refused(within time.Duration) (nodes []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for node, at := range d.last {
		if time.Since(at) < within {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// admit takes a connection of a node, or refuses it.
func (d *DuplicateNames) admit(node string, cert *x509.Certificate, conn net.Conn) (net.Conn, error) {
	print, c := sha256.Sum256(cert.Raw), &trackedConn{Conn: conn}
	d.mu.Lock()
	b := d.names[node]
	var reason string
	var closes []net.Conn
	var err error
	switch {
	case b == nil || b.print == print:
	case cert.NotBefore.After(b.since):
		reason = fmt.Sprintf("a certificate of node %s that was issued %s has come, and %d connections of the one of %s "+
			"are closed: if these are two machines, give one of them another name (godwit node token)",
			node, cert.NotBefore.UTC().Format(time.RFC3339), len(b.conns), b.since.UTC().Format(time.RFC3339))
		closes, b = slices.Clone(b.conns), nil
	default:
		err = fmt.Errorf("node %s is connected with another certificate, issued %s: this one, issued %s, is of a second "+
			"machine of that name, or was replaced; give it another name (godwit node token): %w",
			node, b.since.UTC().Format(time.RFC3339), cert.NotBefore.UTC().Format(time.RFC3339), errdefs.ErrAlreadyExists)
		reason, c = err.Error(), nil
		d.note(node)
	}
	if c != nil {
		if b == nil {
			b = &namedCert{print: print, since: cert.NotBefore}
			d.setCert(node, b)
		}
		b.conns = append(b.conns, c)
		c.ends = func() { d.connEnded(node, b, c) }
	}
	tell := reason != "" && d.Told != nil && !d.said[print]
	if tell {
		d.said[print] = true
	}
	d.mu.Unlock()
	for _, old := range closes {
		go old.Close() //nolint:errcheck // one that hangs holds nothing up
	}
	if tell {
		d.Told(node, reason)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (d *DuplicateNames) note(node string) {
	if d.last == nil {
		d.last = map[string]time.Time{}
	}
	d.last[node] = time.Now()
}

func (d *DuplicateNames) setCert(node string, b *namedCert) {
	if d.names == nil {
		d.names, d.said = map[string]*namedCert{}, map[[sha256.Size]byte]bool{}
	}
	d.names[node] = b
}

// connEnded forgets a connection, and with its last one the certificate.
func (d *DuplicateNames) connEnded(node string, b *namedCert, c *trackedConn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b.conns = slices.DeleteFunc(b.conns, func(o net.Conn) bool { return o == net.Conn(c) })
	if len(b.conns) == 0 && d.names[node] == b {
		delete(d.names, node)
	}
}

// trackedConn is a connection that is known to be its node's until it is closed.
type trackedConn struct {
	net.Conn
	ends func()
	once sync.Once
}

// Close implements net.Conn.
func (c *trackedConn) Close() error {
	c.once.Do(c.ends)
	return c.Conn.Close()
}
