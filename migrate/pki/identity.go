package pki

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// Files of an identity.
type Files struct{ CA, Cert, Key string }

// In answers the files that Init and Join make in dir.
func In(dir string) Files {
	return Files{CA: filepath.Join(dir, fileCA), Cert: filepath.Join(dir, fileCert), Key: filepath.Join(dir, fileKey)}
}

// Identity is a node's certificate and the CA it trusts. Files that change are read
// again with the next handshake; files that do not load leave the last good ones.
type Identity struct {
	files Files

	mu     sync.Mutex
	stamp  [3]stamp
	loaded *material
}

type stamp struct {
	modified time.Time
	size     int64
}

type material struct {
	node string
	cert tls.Certificate
	pool *x509.CertPool
}

// Load reads an identity.
func Load(files Files) (*Identity, error) {
	id := &Identity{files: files}
	var err error
	if id.stamp, err = files.stat(); err != nil {
		return nil, err
	}
	id.loaded, err = files.load()
	return id, err
}

func (f Files) all() [3]string { return [3]string{f.CA, f.Cert, f.Key} }

func (f Files) stat() (stamps [3]stamp, err error) {
	for i, path := range f.all() {
		info, err := os.Stat(path)
		if err != nil {
			return stamps, missing(path, err)
		}
		stamps[i] = stamp{info.ModTime(), info.Size()}
	}
	return stamps, nil
}

func (f Files) load() (*material, error) {
	ca, err := readCert(f.CA)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(f.Key); err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("key %s: mode %s lets others read it; chmod 600: %w", f.Key, info.Mode().Perm(), errdefs.ErrPermissionDenied)
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("load %s and %s: %w: %w", f.Cert, f.Key, errdefs.ErrInvalidArgument, err)
	}
	node, err := NodeOf(pair.Leaf)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", f.Cert, err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	return &material{node: node, cert: pair, pool: pool}, nil
}

func (id *Identity) current() *material {
	id.mu.Lock()
	defer id.mu.Unlock()
	stamps, err := id.files.stat()
	if err != nil || stamps == id.stamp {
		return id.loaded
	}
	// The stamp is kept only with what it belongs to: half-replaced files are read again.
	if m, err := id.files.load(); err == nil {
		id.loaded, id.stamp = m, stamps
	}
	return id.loaded
}

// Node is the name in the certificate.
func (id *Identity) Node() string { return id.current().node }

// Server is the config of a listener that demands a node's certificate of everybody,
// except of who speaks JoinProtocol, if joining is allowed.
func (id *Identity) Server(join bool) *tls.Config {
	base := &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert}
	base.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		m := id.current()
		config := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{m.cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: m.pool}
		if join && slices.Contains(hello.SupportedProtos, JoinProtocol) {
			config.ClientAuth, config.NextProtos = tls.NoClientCert, []string{JoinProtocol}
		}
		return config, nil
	}
	return base
}

// Client is the config to reach the controller.
func (id *Identity) Client() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &id.current().cert, nil
		},
		InsecureSkipVerify: true, // VerifyConnection does it, against the CA as it is now
		VerifyConnection:   id.verifyController,
	}
}

// ClientOf is the config to reach one node, which must prove to be that.
func (id *Identity) ClientOf(node string) *tls.Config {
	config := id.Client()
	config.VerifyConnection = func(state tls.ConnectionState) error {
		leaf := state.PeerCertificates[0]
		_, err := leaf.Verify(x509.VerifyOptions{Roots: id.current().pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		if err != nil {
			return fmt.Errorf("the server is no node of the cluster: %w: %w", err, errdefs.ErrUnauthenticated)
		}
		if name, err := NodeOf(leaf); err != nil || name != node {
			return fmt.Errorf("the server is node %q, not %q: %w", name, node, errdefs.ErrUnauthenticated)
		}
		return nil
	}
	return config
}

// verifyController wants the role, not an address: only the authority gives it out, and
// the controller may be reached under any name.
func (id *Identity) verifyController(state tls.ConnectionState) error {
	leaf := state.PeerCertificates[0]
	_, err := leaf.Verify(x509.VerifyOptions{Roots: id.current().pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	if err == nil {
		_, err = named(leaf, controllerHost)
	}
	if err != nil {
		return fmt.Errorf("the server is not the cluster's controller: %w: %w", err, errdefs.ErrUnauthenticated)
	}
	return nil
}
