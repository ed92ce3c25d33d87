package store_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// clientCertificate writes one that signs itself, and its key.
func clientCertificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "node"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	for name, block := range map[string]*pem.Block{"node.pem": {Type: "CERTIFICATE", Bytes: cert},
		"node.key": {Type: "EC PRIVATE KEY", Bytes: private}} {
		data := pem.EncodeToMemory(block)
		pool.AppendCertsFromPEM(data)
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return pool
}

// A registry over HTTPS, with a certificate of its own, that wants one of the client: all three
// in hosts.toml, by paths relative to it. What is missing of them is terminal, or tried again
// and never sent in the clear.
func TestHostsCertificates(t *testing.T) {
	dir := t.TempDir()
	r := storetest.Start(t, &storetest.Registry{})
	s := httptest.NewUnstartedServer(r)
	s.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clientCertificate(t, dir),
		MinVersion: tls.VersionTLS12}
	s.Config.ErrorLog = nil
	s.StartTLS()
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "https://")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	_, a := noise(1000)
	put := func(text string) error {
		root := filepath.Join(dir, host)
		if err := os.MkdirAll(root, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, data := range map[string][]byte{"hosts.toml": []byte(text), "ca.pem": ca} {
			if err := os.WriteFile(filepath.Join(root, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		st, err := store.Open(store.Config{Repository: host + "/p/uid1", DockerConfig: t.TempDir(), HostsDir: dir})
		if err != nil {
			return err
		}
		return store.RetryAfter(st, time.Millisecond).Put(t.Context(), store.Blob(a.Digest), a)
	}
	const client = "client = [[\"../node.pem\", \"../node.key\"]]\n"
	for text, class := range map[string]error{
		"ca = \"ca.pem\"\n" + client:    nil,
		"skip_verify = true\n" + client: nil,
		fmt.Sprintf("server = %q\nca = [\"ca.pem\"]\nclient = [[\"%s/node.pem\", \"%s/node.key\"]]\n", s.URL, dir, dir): nil,
		client:                               errdefs.ErrFailedPrecondition,
		"ca = \"ca.pem\"\n":                  errdefs.ErrUnavailable,
		"ca = \"ca.pem\"\nclient = \"none\"": errdefs.ErrInvalidArgument,
	} {
		if err := put(text); errdefs.Resolve(err) != errdefs.Resolve(class) {
			t.Errorf("%q: %v, want %v", text, err, class)
		}
	}
}
