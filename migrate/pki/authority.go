package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
)

// Validity of certificates. A node's is renewed by joining again; the files may be
// replaced under a running daemon.
const (
	validCA   = 10 * 365 * 24 * time.Hour
	validNode = 5 * 365 * 24 * time.Hour
	skew      = 5 * time.Minute // between the clocks of two nodes
)

// Init makes the CA of a cluster and the certificate of its first node, which may serve
// the records at the given addresses: host names or IPs, without port.
func Init(dir, node string, addresses []string) error {
	if err := checkNode(node); err != nil {
		return err
	}
	if err := refuse(dir, fileCA, fileCAKey, fileCert, fileKey); err != nil {
		return err
	}
	authority, err := NewAuthority()
	if err != nil {
		return err
	}
	if err := writeKey(filepath.Join(dir, fileCAKey), authority.key); err != nil {
		return err
	}
	if err := write(filepath.Join(dir, fileCA), 0o644, encode(typeCert, authority.cert.Raw)); err != nil {
		return err
	}
	return authority.issueOwn(dir, node, addresses)
}

// NewAuthority makes the CA of a cluster, in memory alone.
func NewAuthority() (*Authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "godwit cluster CA"}, NotBefore: time.Now().Add(-skew),
		NotAfter: time.Now().Add(validCA),
		IsCA:     true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse the certificate of the new CA: %w", err)
	}
	return &Authority{cert: cert, key: key}, nil
}

// Authority signs the certificates of a cluster's nodes.
type Authority struct {
	// Taken says why no further machine may join under a name; nil: none is refused. A token for a
	// renewal is not asked about.
	Taken func(node string) error
	// Valid is how long the certificate of a node is; 0: five years.
	Valid time.Duration

	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// OpenAuthority loads the CA that Init made in dir.
func OpenAuthority(dir string) (*Authority, error) {
	certs, err := readCerts(filepath.Join(dir, fileCA))
	if err != nil {
		return nil, err
	}
	key, err := readKey(filepath.Join(dir, fileCAKey))
	if err != nil {
		return nil, err
	}
	for _, cert := range certs { // others may be trusted in addition to it
		if public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool }); ok && public.Equal(cert.PublicKey) {
			return &Authority{dir: dir, cert: cert, key: key}, nil
		}
	}
	return nil, fmt.Errorf("%s holds no certificate of the key %s: %w", filepath.Join(dir, fileCA),
		filepath.Join(dir, fileCAKey), errdefs.ErrInvalidArgument)
}

// issueOwn makes the certificate of the authority's own node, the controller.
func (a *Authority) issueOwn(dir, node string, addresses []string) error {
	key, err := newKey()
	if err != nil {
		return err
	}
	der, err := request(key, node, addresses)
	if err != nil {
		return err
	}
	chain, err := a.issue(der, node, controllerHost)
	if err != nil {
		return err
	}
	if err := writeKey(filepath.Join(dir, fileKey), key); err != nil {
		return err
	}
	return write(filepath.Join(dir, fileCert), 0o644, chain)
}

// Sign answers the certificate for the request of a node, both PEM. It is for clusters
// where files are carried by hand; the operator vouches for the name.
func (a *Authority) Sign(csr []byte, node string) ([]byte, error) {
	der, err := decode("certificate request", typeRequest, csr)
	if err != nil {
		return nil, err
	}
	return a.issue(der, node)
}

// issue signs a request for node: the name is ours, only key and addresses are the
// request's. The answer holds the certificate and the CA's.
func (a *Authority) issue(der []byte, node string, roles ...string) ([]byte, error) {
	if err := checkNode(node); err != nil {
		return nil, err
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return nil, fmt.Errorf("certificate request of node %s: %w: %w", node, errdefs.ErrInvalidArgument, err)
	}
	valid := a.Valid
	if valid == 0 {
		valid = validNode
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: node}, DNSNames: csr.DNSNames, IPAddresses: csr.IPAddresses,
		NotBefore: time.Now().Add(-skew), NotAfter: time.Now().Add(valid),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range append([]string{nodeHost}, roles...) {
		template.URIs = append(template.URIs, uri(host, node))
	}
	signed, err := sign(template, a.cert, csr.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	return append(encode(typeCert, signed), encode(typeCert, a.cert.Raw)...), nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return key, nil
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %q: %w", template.Subject.CommonName, err)
	}
	return der, nil
}

// request makes a certificate request, DER.
func request(key crypto.Signer, node string, addresses []string) ([]byte, error) {
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: node}}
	for _, address := range addresses {
		if ip := net.ParseIP(address); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
			continue
		}
		template.DNSNames = append(template.DNSNames, address)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request of node %s: %w", node, err)
	}
	return der, nil
}
