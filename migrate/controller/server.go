package controller

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/failpoint"
	"godwit.dev/godwit/internal/link"
	"godwit.dev/godwit/migrate/connlimit"
	"godwit.dev/godwit/migrate/pki"
)

// handshakeTimeout bounds how long a connection may stay unauthenticated.
const handshakeTimeout = 10 * time.Second

// NewServer makes a ttrpc server whose services may answer plain errdefs errors: they
// keep their class on the wire. An answer that no message takes is an error like others.
func NewServer(more ...ttrpc.ServerOpt) (*ttrpc.Server, error) {
	classes := ttrpc.WithUnaryServerInterceptor(func(ctx context.Context, unmarshal ttrpc.Unmarshaler,
		info *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
		resp, err := method(ctx, checkedUnmarshal(unmarshal))
		if err == nil {
			err = fits(info.FullMethod, resp)
		}
		return answered(ctx, resp, record.ToWire(err))
	})
	return ttrpc.NewServer(slices.Concat([]ttrpc.ServerOpt{classes}, more, failpoint.Server())...)
}

// checkedUnmarshal is unmarshal that lets a request in only as Sanitize leaves it. What is no message at all is the
// caller's fault, and stays it however often it is tried.
func checkedUnmarshal(unmarshal ttrpc.Unmarshaler) ttrpc.Unmarshaler {
	return func(to any) error {
		m, ok := to.(proto.Message)
		err := unmarshal(to)
		switch {
		case err != nil && ok:
			if named := unmarshal(dynamicpb.NewMessage(m.ProtoReflect().Descriptor())); named != nil {
				err = named // slower, and names the field
			}
			return fmt.Errorf("request: %s: %w", shown(status.Convert(err).Message()), errdefs.ErrInvalidArgument)
		case err != nil || !ok:
			return err
		}
		return CheckRequest(m)
	}
}

// CheckRequest lets a request in only as Sanitize leaves it, and with what it is about. Streams have no interceptor:
// each asks this first.
func CheckRequest(m proto.Message) error { return cmp.Or(Sanitize(m), complete(m.ProtoReflect())) }

// ServeLocal serves srv on a unix socket to root and this process' own user, until ctx
// ends or the listener is closed.
func ServeLocal(ctx context.Context, srv *ttrpc.Server, l net.Listener) error {
	return serve(ctx, srv, l, func(ctx context.Context, conn net.Conn) (context.Context, net.Conn, error) {
		return ctx, conn, sameUser(ctx, conn)
	})
}

// ServeTLS serves srv to the other nodes; the node that a client's certificate names is
// the peer of every call on that connection. With an authority, nodes may join here. Of two machines
// of one name the older one is refused; doubles, at most one, tells of it.
func ServeTLS(ctx context.Context, srv *ttrpc.Server, l net.Listener, id *pki.Identity, authority *pki.Authority,
	doubles ...*DuplicateNames) error {
	names := new(DuplicateNames)
	if len(doubles) > 0 {
		names = doubles[0]
	}
	config := newAdmission().guard(id.Server(authority != nil))
	return serve(ctx, srv, l, func(ctx context.Context, conn net.Conn) (context.Context, net.Conn, error) {
		secure := tls.Server(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return ctx, conn, pki.Refusal(err)
		}
		state := secure.ConnectionState()
		if state.NegotiatedProtocol == pki.JoinProtocol {
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			return ctx, nil, authority.Enroll(secure)
		}
		node, err := pki.NodeOf(state.PeerCertificates[0])
		if err != nil {
			return ctx, nil, err
		}
		one, err := names.admit(node, state.PeerCertificates[0], secure)
		return WithPeer(ctx, node), one, err
	})
}

// ServePeer serves srv to the controller alone.
func ServePeer(ctx context.Context, srv *ttrpc.Server, l net.Listener, id *pki.Identity) error {
	config := id.Server(false)
	return serve(ctx, srv, l, func(ctx context.Context, conn net.Conn) (context.Context, net.Conn, error) {
		secure := tls.Server(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return ctx, conn, pki.Refusal(err)
		}
		leaf := secure.ConnectionState().PeerCertificates[0]
		node, err := pki.NodeOf(leaf)
		if err == nil && !pki.IsController(leaf) {
			err = fmt.Errorf("node %s is not the cluster's controller: %w", node, errdefs.ErrPermissionDenied)
		}
		return WithPeer(ctx, node), secure, err
	})
}

// authenticate authenticates a connection and says under which context its calls run; without
// a connection there is nothing to serve.
type authenticate func(context.Context, net.Conn) (context.Context, net.Conn, error)

// serve is ttrpc's accept loop with three differences: a slow handshake holds up no other connection. What it
// learns reaches the calls, through their context. An Accept that fails ends the loop only with the listener.
func serve(ctx context.Context, srv *ttrpc.Server, l net.Listener, hello authenticate) error {
	l = link.RetryAccept(l)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer func() { stop(); _ = l.Close() }() // who listens next has a socket that is not removed any more
	var lines connlimit.LogLimit
	var peers windows
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := l.Accept()
		ended := ctx.Err() != nil // asked once: it may change at any moment
		if err == nil && ended {
			_ = conn.Close() // who waited for an answer would wait for long
		}
		if ended {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
		wg.Go(func() {
			if err := admit(ctx, srv, conn, hello, &peers); err != nil {
				lines.Warn(ctx, "connection refused", "from", conn.RemoteAddr().String(), "error", err)
				_ = conn.Close()
			}
		})
	}
}

func admit(ctx context.Context, srv *ttrpc.Server, conn net.Conn, hello authenticate, peers *windows) error {
	bound, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	known, secure, err := hello(bound, conn)
	if err != nil || secure == nil {
		return err
	}
	connlimit.Known(conn)
	calls := context.WithoutCancel(ctx)
	node, remote := Peer(known)
	w, leave := newWindow(), func() {}
	if remote {
		calls = WithPeer(calls, node)
		if w, leave, err = peers.enter(node); err != nil {
			return errors.Join(err, secure.Close())
		}
	}
	l := newPeerConn(secure, w, leave)
	err = srv.Serve(context.WithValue(calls, peerConnKey{}, l), &single{conn: closeWith(ctx, l)})
	if errors.Is(err, io.EOF) || errors.Is(err, ttrpc.ErrServerClosed) && ctx.Err() != nil {
		return nil
	}
	return err
}

// single is a listener of one connection.
type single struct{ conn net.Conn }

func (s *single) Accept() (net.Conn, error) {
	if s.conn == nil {
		return nil, io.EOF
	}
	conn := s.conn
	s.conn = nil
	return conn, nil
}

func (*single) Close() error   { return nil }
func (*single) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// sameUser accepts root and the user that runs the daemon.
func sameUser(ctx context.Context, conn net.Conn) error {
	_, _, rootErr := ttrpc.UnixSocketRequireUidGid(0, -1).Handshake(ctx, conn)
	if rootErr == nil {
		return nil
	}
	_, _, err := ttrpc.UnixSocketRequireSameUser().Handshake(ctx, conn)
	return err
}

// Local is a listener on a unix socket that takes the connections of those whom ServeLocal takes.
type Local struct{ net.Listener }

// Accept implements net.Listener.
func (l Local) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if err = sameUser(context.Background(), conn); err == nil {
			return conn, nil
		}
		slog.Warn("another user is refused", "socket", l.Addr(), "error", errors.Join(err, conn.Close()))
	}
}
