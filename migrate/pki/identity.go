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

// Identity is a node's certificate and the CAs it trusts. Files that change are read
// again with the next handshake; files that do not load leave the last good ones.
type Identity struct {
	files Files

	mu     sync.Mutex
	stamp  stamps
	loaded *material
}

// stamps tell files that were replaced or written from those that were not.
type stamps [3]os.FileInfo

func (s stamps) same(other stamps) bool {
	for i := range s {
		if !os.SameFile(s[i], other[i]) || !s[i].ModTime().Equal(other[i].ModTime()) || s[i].Size() != other[i].Size() {
			return false
		}
	}
	return true
}

type material struct {
	files Files
	node  string
	cert  tls.Certificate
	chain []*x509.Certificate // of cert: the node's, and what stands between it and its CA
	pool  *x509.CertPool
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

// LoadOf reads the identity of the node of that name, and refuses another node's.
func LoadOf(node string, files Files) (*Identity, error) {
	id, err := Load(files)
	if err != nil {
		return nil, err
	}
	if id.Node() != node {
		return nil, fmt.Errorf("tls.cert: %s is the certificate of node %q, this one is %q (node): %w", files.Cert,
			id.Node(), node, errdefs.ErrInvalidArgument)
	}
	return id, nil
}

func (f Files) all() [3]string { return [3]string{f.CA, f.Cert, f.Key} }

func (f Files) stat() (now stamps, err error) {
	for i, path := range f.all() {
		if now[i], err = os.Stat(path); err != nil {
			return now, missing(path, err)
		}
	}
	return now, nil
}

func (f Files) load() (*material, error) {
	roots, err := readCerts(f.CA)
	if err != nil {
		return nil, fmt.Errorf("tls.ca: %w", err)
	}
	if info, err := os.Stat(f.Key); err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("tls.key: key %s: mode %s lets others read it; chmod 600: %w", f.Key, info.Mode().Perm(),
			errdefs.ErrPermissionDenied)
	}
	pair, err := f.pair()
	if err != nil {
		return nil, fmt.Errorf("load %s and %s (tls.cert, tls.key): %w: %w", f.Cert, f.Key, errdefs.ErrInvalidArgument, err)
	}
	m := &material{files: f, cert: pair, pool: x509.NewCertPool()}
	for _, root := range roots {
		m.pool.AddCert(root)
	}
	for _, der := range pair.Certificate {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("tls.cert: parse %s: %w: %w", f.Cert, errdefs.ErrInvalidArgument, err)
		}
		m.chain = append(m.chain, cert)
	}
	if m.node, err = NodeOf(m.chain[0]); err == nil {
		err = m.check()
	}
	if err != nil {
		return nil, fmt.Errorf("tls.cert: load %s: %w: %w", f.Cert, errdefs.ErrInvalidArgument, err)
	}
	return m, nil
}

func (id *Identity) current() *material {
	id.mu.Lock()
	defer id.mu.Unlock()
	now, err := id.files.stat()
	if err != nil || now.same(id.stamp) {
		return id.loaded
	}
	// The stamp is kept only with what it belongs to: half-replaced files are read again.
	if m, err := id.files.load(); err == nil {
		id.loaded, id.stamp = m, now
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
		config := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{m.cert},
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: m.pool}
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
			return id.current().shown(time.Now())
		},
		InsecureSkipVerify: true, // VerifyConnection does it, against the CAs as they are now
		VerifyConnection:   id.verifyController,
	}
}

// ClientOf is the config to reach one node, which must prove to be that.
func (id *Identity) ClientOf(node string) *tls.Config {
	config := id.Client()
	config.VerifyConnection = func(state tls.ConnectionState) error {
		leaf := state.PeerCertificates[0]
		if err := verify(state.PeerCertificates, id.current().pool, x509.ExtKeyUsageServerAuth, time.Now()); err != nil {
			return fmt.Errorf("the server is no node of the cluster: %w: %w", explained(leaf, err), errdefs.ErrUnauthenticated)
		}
		name, err := NodeOf(leaf)
		if err != nil {
			return fmt.Errorf("the server is not node %q: %w", node, err)
		}
		if name != node {
			return fmt.Errorf("the server is node %q, not %q: mend peer.advertise of node %s, or give it a certificate with "+
				"the URI %s (tls.cert): %w",
				name, node, node, uri(nodeHost, node), errdefs.ErrUnauthenticated)
		}
		return nil
	}
	return config
}

// verifyController wants the role, not an address: only the authority gives it out, and
// the controller may be reached under any name.
func (id *Identity) verifyController(state tls.ConnectionState) error {
	leaf := state.PeerCertificates[0]
	err := verify(state.PeerCertificates, id.current().pool, x509.ExtKeyUsageServerAuth, time.Now())
	if err != nil {
		err = explained(leaf, err)
	} else if !IsController(leaf) {
		err = fmt.Errorf("the certificate of %q has no URI godwit://%s/NAME (tls.cert there)", leaf.Subject.CommonName,
			controllerHost)
	}
	if err != nil {
		return fmt.Errorf("the server is not the cluster's controller: %w: %w", err, errdefs.ErrUnauthenticated)
	}
	return nil
}
