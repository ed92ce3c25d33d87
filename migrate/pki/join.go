package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// JoinProtocol is the ALPN name under which a node without certificate asks for one, on
// the controller's own port. One JSON request, one JSON answer.
const JoinProtocol = "godwit-join/1"

// Bounds of one exchange.
const (
	joinTimeout = 15 * time.Second
	joinBytes   = 64 << 10
)

type joinRequest struct {
	Token string `json:"token"`
	CSR   []byte `json:"csr"` // DER
}

type joinAnswer struct {
	Chain   []byte     `json:"chain,omitempty"` // PEM: node, CA
	Code    codes.Code `json:"code,omitempty"`
	Message string     `json:"message,omitempty"`
}

// Enroll answers one join request on conn, and closes it.
func (a *Authority) Enroll(conn net.Conn) error {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(joinTimeout)); err != nil {
		return err
	}
	var req joinRequest
	if err := json.NewDecoder(io.LimitReader(conn, joinBytes)).Decode(&req); err != nil {
		return fmt.Errorf("read join request from %s: %w: %w", conn.RemoteAddr(), errdefs.ErrInvalidArgument, err)
	}
	chain, err := a.redeem(req)
	answer := joinAnswer{Chain: chain}
	if err != nil {
		st := status.Convert(errgrpc.ToGRPC(err))
		answer = joinAnswer{Code: st.Code(), Message: st.Message()}
	}
	return errors.Join(err, json.NewEncoder(conn).Encode(answer))
}

func (a *Authority) redeem(req joinRequest) ([]byte, error) {
	t, err := parseToken(req.Token)
	if err != nil {
		return nil, err
	}
	if err := a.check(t, time.Now()); err != nil {
		return nil, err
	}
	if a.Taken != nil && !t.Renew {
		if err := a.Taken(t.Node); err != nil {
			return nil, err
		}
	}
	var roles []string
	if t.Controller {
		roles = []string{controllerHost}
	}
	chain, err := a.issue(req.CSR, t.Node, roles...)
	if err != nil {
		return nil, err // the token is good for another try
	}
	return chain, a.spend(t)
}

// Join gets the certificate of this node from the controller at address, host:port. The
// node's name is the token's.
func Join(ctx context.Context, dir, address, text string, addresses []string) (node string, err error) {
	t, err := parseToken(text)
	if err != nil {
		return "", err
	}
	if err := refuse(dir, fileCA, fileCert, fileKey); err != nil {
		return "", err
	}
	key, err := newKey()
	if err != nil {
		return "", err
	}
	csr, err := request(key, t.Node, addresses)
	if err != nil {
		return "", err
	}
	chain, err := ask(ctx, address, t, joinRequest{Token: text, CSR: csr})
	if err != nil {
		return "", fmt.Errorf("join cluster at %s as node %s: %w", address, t.Node, err)
	}
	if err := writeKey(filepath.Join(dir, fileKey), key); err != nil {
		return "", err
	}
	return t.Node, install(dir, t.Node, chain)
}

// ask sends the token only to a server that shows the token's CA.
func ask(ctx context.Context, address string, t token, req joinRequest) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{JoinProtocol},
		InsecureSkipVerify: true, // VerifyConnection does it, against the fingerprint
		VerifyConnection:   func(state tls.ConnectionState) error { return pinned(state.PeerCertificates, t.Fingerprint) },
	}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		if !errors.Is(err, errdefs.ErrUnauthenticated) {
			err = fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
		}
		return nil, err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	if err := json.NewEncoder(conn).Encode(req); err != nil {
		return nil, fmt.Errorf("send request: %w: %w", err, errdefs.ErrUnavailable)
	}
	var answer joinAnswer
	if err := json.NewDecoder(io.LimitReader(conn, joinBytes)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("read answer: %w: %w", err, errdefs.ErrUnavailable)
	}
	if answer.Code != codes.OK {
		return nil, errgrpc.ToNative(status.Error(answer.Code, answer.Message))
	}
	return answer.Chain, nil
}

// pinned wants a controller's certificate signed by the CA of this fingerprint.
func pinned(chain []*x509.Certificate, want []byte) error {
	for _, ca := range chain {
		if !bytes.Equal(fingerprint(ca), want) {
			continue
		}
		pool := x509.NewCertPool()
		pool.AddCert(ca)
		_, err := chain[0].Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		if err == nil {
			_, err = named(chain[0], controllerHost)
		}
		if err != nil {
			return fmt.Errorf("the server is not the cluster's controller: %w: %w", err, errdefs.ErrUnauthenticated)
		}
		return nil
	}
	return fmt.Errorf("the server does not show the CA that the join token names: %w", errdefs.ErrUnauthenticated)
}

// Request makes this node's key and answers its certificate request, PEM, for Sign.
func Request(dir, node string, addresses []string) ([]byte, error) {
	if err := checkNode(node); err != nil {
		return nil, err
	}
	if err := refuse(dir, fileCA, fileCert, fileKey); err != nil {
		return nil, err
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	der, err := request(key, node, addresses)
	if err != nil {
		return nil, err
	}
	return encode(typeRequest, der), writeKey(filepath.Join(dir, fileKey), key)
}

// Install puts what Sign answered next to the key that Request made.
func Install(dir, node string, chain []byte) error {
	if err := refuse(dir, fileCA, fileCert); err != nil {
		return err
	}
	return install(dir, node, chain)
}

func install(dir, node string, chain []byte) error {
	data, err := os.ReadFile(filepath.Join(dir, fileKey))
	if err != nil {
		return missing(filepath.Join(dir, fileKey), err)
	}
	certs, err := checkChain(node, chain, data)
	if err != nil {
		return err
	}
	return writeChain(dir, certs, chain)
}

// checkChain makes sure that a chain is what Sign answers to the node, for the key.
func checkChain(node string, chain, key []byte) (tls.Certificate, error) {
	pair, err := tls.X509KeyPair(chain, key)
	if err == nil && len(pair.Certificate) != 2 {
		err = errors.New("it holds no node's certificate followed by the CA's")
	}
	if err != nil {
		return pair, fmt.Errorf("certificate of node %s: %w: %w", node, err, errdefs.ErrInvalidArgument)
	}
	if got, err := NodeOf(pair.Leaf); err != nil || got != node {
		return pair, fmt.Errorf("certificate names node %q, not %s: %w", got, node, errdefs.ErrInvalidArgument)
	}
	return pair, nil
}

func writeChain(dir string, certs tls.Certificate, chain []byte) error {
	if err := write(filepath.Join(dir, fileCA), 0o644, encode(typeCert, certs.Certificate[1])); err != nil {
		return err
	}
	return write(filepath.Join(dir, fileCert), 0o644, chain)
}
