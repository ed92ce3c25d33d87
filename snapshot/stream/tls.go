package stream

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/version"
)

// Identity is one end of a stream: a key that is used for one attempt of one operation, and a
// certificate that only itself has signed. The other end is told its bytes.
type Identity struct {
	Certificate []byte `json:"certificate"` // DER
	Key         []byte `json:"key"`         // PKCS 8
}

// NewIdentity makes one.
func NewIdentity() (Identity, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return Identity{}, fmt.Errorf("make key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return Identity{}, fmt.Errorf("make certificate: %w", err)
	}
	// Who accepts it compares bytes: its times mean nothing, and clocks may differ.
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "godwit stream"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	out := Identity{}
	if out.Certificate, err = x509.CreateCertificate(rand.Reader, template, template, public, private); err != nil {
		return Identity{}, fmt.Errorf("make certificate: %w", err)
	}
	if out.Key, err = x509.MarshalPKCS8PrivateKey(private); err != nil {
		return Identity{}, fmt.Errorf("make key: %w", err)
	}
	return out, nil
}

// Ends say who may be at the ends of a connection.
type Ends struct {
	Own     Identity `json:"own"`
	Peer    []byte   `json:"peer"` // DER
	Channel string   `json:"channel"`
}

const (
	// handshakeBound is for a peer that is there and says nothing.
	handshakeBound = 10 * time.Second
	// answerBound is for a destination, whose worker has to be started first.
	answerBound = time.Minute
)

// Client makes the source's end of a connection.
func (e Ends) Client(ctx context.Context, conn net.Conn) (net.Conn, error) {
	cfg, err := e.config()
	if err != nil {
		return nil, err
	}
	cfg.ServerName, cfg.InsecureSkipVerify = e.Channel, true // e.check compares bytes
	return e.shake(ctx, answerBound, tls.Client(conn, cfg))
}

// Server makes the destination's end.
func (e Ends) Server(ctx context.Context, conn net.Conn) (net.Conn, error) {
	cfg, err := e.config()
	if err != nil {
		return nil, err
	}
	cfg.ClientAuth = tls.RequireAnyClientCert
	return e.shake(ctx, handshakeBound, tls.Server(conn, cfg))
}

func (e Ends) config() (*tls.Config, error) {
	key, err := x509.ParsePKCS8PrivateKey(e.Own.Key)
	if err != nil {
		return nil, fmt.Errorf("stream: own key: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{e.Own.Certificate}, PrivateKey: key}},
		NextProtos:   []string{version.PagesALPN}, MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true,
		VerifyConnection: e.check,
	}, nil
}

// check wants the one certificate that the other end was said to have.
func (e Ends) check(s tls.ConnectionState) error {
	switch {
	case len(s.PeerCertificates) != 1 || len(e.Peer) == 0 || !bytes.Equal(s.PeerCertificates[0].Raw, e.Peer):
		return errors.New("the certificate is not the one of this attempt")
	case s.NegotiatedProtocol != version.PagesALPN:
		return fmt.Errorf("protocol %q", s.NegotiatedProtocol)
	case s.ServerName != e.Channel:
		return fmt.Errorf("channel %q", s.ServerName)
	}
	return nil
}

func (e Ends) shake(ctx context.Context, within time.Duration, conn *tls.Conn) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("stream: handshake with %s: %w: %w", conn.RemoteAddr(), err, errdefs.ErrUnauthenticated)
	}
	return conn, nil
}
