package pki

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/durable"
)

// PEM is the CA as ParseAuthority takes it: its certificate and its key.
func (a *Authority) PEM() (cert, key []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the key of the CA: %w", err)
	}
	return encode(typeCert, a.cert.Raw), encode(typeKey, der), nil
}

// ParseAuthority reads a CA that is kept elsewhere than in files.
func ParseAuthority(cert, key []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("certificate and key of the CA: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("certificate of the CA: %q signs no others: %w", pair.Leaf.Subject.CommonName,
			errdefs.ErrInvalidArgument)
	}
	return &Authority{cert: pair.Leaf, key: signer}, nil
}

// Controller puts a certificate of one more controller into dir, with the CA's. The CA's key is not put there, so no
// node may join at this controller by a token.
func (a *Authority) Controller(dir, node string) error {
	if err := checkNode(node); err != nil {
		return err
	}
	if err := refuse(dir); err != nil {
		return err
	}
	if err := write(filepath.Join(dir, fileCA), 0o644, encode(typeCert, a.cert.Raw)); err != nil {
		return err
	}
	return a.issueOwn(dir, node, nil)
}

// Wish is a key whose certificate request is under way.
type Wish struct {
	Request []byte // PEM

	node string
	key  crypto.Signer
}

// NewWish makes a key for a node, in memory alone: Grant writes it.
func NewWish(node string) (*Wish, error) {
	if err := checkNode(node); err != nil {
		return nil, err
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	der, err := request(key, node, nil)
	if err != nil {
		return nil, err
	}
	return &Wish{Request: encode(typeRequest, der), node: node, key: key}, nil
}

// Grant replaces the node's key and certificates in dir by what Sign answered. A daemon that runs takes them up with
// its next connection. At each moment one of the two keys that are there fits the certificate: so whatever ends this
// half-way, or fails it, the node has its certificate. With another CA the files may not load, and a new wish replaces
// them.
func (w *Wish) Grant(dir string, chain []byte) error {
	if err := refuse(dir); err != nil {
		return err
	}
	files := In(dir)
	if err := files.settle(); err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(w.key)
	if err != nil {
		return fmt.Errorf("encode the key of node %s: %w", w.node, err)
	}
	certs, err := checkChain(w.node, chain, encode(typeKey, der))
	if err != nil {
		return err
	}
	if err := writeKey(files.nextKey(), w.key); err != nil {
		return err
	}
	if err := writeChain(dir, certs, chain); err != nil {
		return err
	}
	return files.settle()
}

// nextKey is the file of a key before its certificate is there.
func (f Files) nextKey() string { return f.Key + ".next" }

// pair loads the certificate with its key, also where a renewal has ended half-way.
func (f Files) pair() (tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err == nil {
		return pair, nil
	}
	if next, nerr := tls.LoadX509KeyPair(f.Cert, f.nextKey()); nerr == nil {
		return next, nil
	}
	return pair, err
}

// settle ends a renewal that has ended half-way, if its certificate is there.
func (f Files) settle() error {
	if _, err := tls.LoadX509KeyPair(f.Cert, f.nextKey()); err != nil {
		return nil // the key of before is the one
	}
	if err := errors.Join(os.Rename(f.nextKey(), f.Key), durable.SyncDir(filepath.Dir(f.Key))); err != nil {
		return fmt.Errorf("replace %s: %w", f.Key, err)
	}
	return nil
}

// IssuedBy reports whether the CA of this PEM has signed the certificate.
func (id *Identity) IssuedBy(ca []byte) (bool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return false, fmt.Errorf("certificate of the CA: there is none: %w", errdefs.ErrInvalidArgument)
	}
	chain := id.current().chain
	return verify(chain, pool, x509.ExtKeyUsageClientAuth, chain[0].NotBefore) == nil, nil // one that is over, too
}

// Expires is when the certificate ends, and how long it is valid in all.
func (id *Identity) Expires() (end time.Time, valid time.Duration) {
	leaf := id.current().chain[0]
	return leaf.NotAfter, leaf.NotAfter.Sub(leaf.NotBefore)
}
