package pki_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/migrate/pki"
)

// issuer is a CA as somebody else has made it.
type issuer struct {
	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
	above []*x509.Certificate // between it and its root, itself first; a root has none
}

func newIssuer(t *testing.T, name string, by *issuer) *issuer {
	t.Helper()
	template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		Subject: pkix.Name{CommonName: name}}
	cert, key := issue(t, template, by)
	i := &issuer{cert: cert, key: key}
	if by != nil {
		i.above = append([]*x509.Certificate{cert}, by.above...)
	}
	return i
}

// issue makes a certificate that is valid now unless the template says when; without an issuer
// it signs itself.
func issue(t *testing.T, template *x509.Certificate, by *issuer) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-48*time.Hour), time.Now().Add(48*time.Hour)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100)); err != nil {
		t.Fatal(err)
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// leaf is a node's certificate as docs/reference/certificates.md wants it.
func leaf(uris ...string) *x509.Certificate {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: strings.Join(uris, " ")}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, text := range uris {
		u, err := url.Parse(text)
		if err != nil {
			panic(err)
		}
		template.URIs = append(template.URIs, u)
	}
	return template
}

func expired(template *x509.Certificate) *x509.Certificate {
	template.NotBefore, template.NotAfter = time.Now().Add(-24*time.Hour), time.Now().Add(-time.Hour)
	return template
}

func inPEM(certs ...*x509.Certificate) (text []byte) {
	for _, c := range certs {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return text
}

// put replaces a file as a careful operator does.
func put(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// equip writes the three files of a node: its certificate with those of its issuer after it, and
// the CAs that it trusts.
func equip(t *testing.T, files pki.Files, template *x509.Certificate, by *issuer, trusts ...*issuer) *x509.Certificate {
	t.Helper()
	cert, key := issue(t, template, by)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	var roots []*x509.Certificate
	for _, i := range trusts {
		roots = append(roots, i.cert)
	}
	put(t, files.CA, append([]byte("the CAs of two sites\n"), inPEM(roots...)...))
	put(t, files.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	put(t, files.Cert, inPEM(append([]*x509.Certificate{cert}, by.above...)...))
	return cert
}

func files(t *testing.T) pki.Files {
	t.Helper()
	dir := t.TempDir()
	return pki.Files{CA: filepath.Join(dir, "roots.pem"), Cert: filepath.Join(dir, "tls.pem"),
		Key: filepath.Join(dir, "tls-key.pem")}
}

func load(t *testing.T, f pki.Files) *pki.Identity {
	t.Helper()
	id, err := pki.Load(f)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// met is one connection, as both ends see it.
type met struct {
	client, server *x509.Certificate // what each end was shown by the other: the server's, the client's
	refused        error             // by the client
	refuses        error             // the server
}

// meet connects over TCP.
func meet(t *testing.T, server, client *tls.Config) (m met) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan met, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- met{refuses: err}
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		secure := tls.Server(conn, server)
		if err := secure.Handshake(); err != nil {
			done <- met{refuses: pki.Refusal(err)}
			return
		}
		_, err = secure.Write([]byte("x"))
		done <- met{server: secure.ConnectionState().PeerCertificates[0], refuses: err}
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(time.Minute))
	conn := tls.Client(raw, client)
	if m.refused = conn.Handshake(); m.refused == nil {
		m.client = conn.ConnectionState().PeerCertificates[0]
		_, m.refused = io.ReadFull(conn, make([]byte, 1)) // the server decides after the client
	}
	raw.Close()
	far := <-done
	m.server, m.refuses = far.server, far.refuses
	return m
}

// shows is an end that looks at nothing and shows this certificate to every peer.
func shows(pair tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, Certificates: []tls.Certificate{pair},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
	}
}
