package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// verify wants a certificate that a CA of the pool has issued, over the intermediate ones that
// come after it in its chain.
func verify(chain []*x509.Certificate, pool *x509.CertPool, usage x509.ExtKeyUsage, at time.Time) error {
	between := x509.NewCertPool()
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage},
		CurrentTime: at})
	return err
}

// explained is err with what is wrong with the certificate and where that is mended.
func explained(leaf *x509.Certificate, err error) error {
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert == leaf:
		return outdated(leaf, err)
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return fmt.Errorf("the certificate of %q is not for this: issue one with the extended key usages serverAuth and "+
			"clientAuth for tls.cert: %w", leaf.Subject.CommonName, err)
	case errors.As(err, &unknown):
		return fmt.Errorf("the certificate of %q, issued by %q, leads to no CA in tls.ca: put that CA into tls.ca, and "+
			"the intermediate certificates after the node's own in tls.cert: %w",
			leaf.Subject.CommonName, leaf.Issuer.CommonName, err)
	}
	return fmt.Errorf("the certificate of %q: %w", leaf.Subject.CommonName, err)
}

func outdated(leaf *x509.Certificate, err error) error {
	return fmt.Errorf("the certificate of %q is valid from %s to %s: renew it in tls.cert there (godwit node join, or "+
		"your own CA): %w",
		leaf.Subject.CommonName, leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339), err)
}

// check wants a certificate that the others, who trust the same CAs, take or have taken. What is
// valid now is asked with each connection: a clock may be wrong at the start, and a node whose
// certificates have expired still has VMs to look after.
func (m *material) check() error {
	leaf := m.chain[0]
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		err := verify(m.chain, m.pool, usage, time.Now())
		if err != nil && verify(m.chain, m.pool, usage, leaf.NotBefore) != nil {
			return explained(leaf, err)
		}
	}
	return nil
}

// shown is what a client proves itself with, unless no peer would take it any more.
func (m *material) shown(now time.Time) (*tls.Certificate, error) {
	leaf := m.chain[0]
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return nil, outdated(leaf, fmt.Errorf("%s: %w", m.files.Cert, errdefs.ErrUnauthenticated))
	}
	return &m.cert, nil
}

// Refusal says what is wrong with a client's certificate that a handshake of Server has refused;
// any other error stays what it is.
func Refusal(err error) error {
	var bad *tls.CertificateVerificationError
	if !errors.As(err, &bad) || len(bad.UnverifiedCertificates) == 0 {
		return err
	}
	return fmt.Errorf("the client is no node of the cluster: %w: %w", explained(bad.UnverifiedCertificates[0], bad.Err),
		errdefs.ErrUnauthenticated)
}
