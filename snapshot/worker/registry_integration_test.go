//go:build integration

package worker

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/store"
)

func TestRoundTripRegistry(t *testing.T) {
	for name, program := range registries(t) {
		t.Run(name, func(t *testing.T) {
			roundTrip(t, startRegistry(t, &registry{program: program}).config(t))
		})
	}
}

// HTTPS with a certificate of its own and basic auth from a docker configuration.
func TestRoundTripRegistryAuth(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key := certificate(t)
	ca := write("ca.crt", cert)
	const user = "me:$2b$04$OdYZLxJxuLoOenT1ehGqoeFcp6lt3WVDS7O5M5ch24ltrJ22ryZ3e\n" // password: secret
	addr := startRegistry(t, &registry{program: registries(t)["distribution"],
		extra: fmt.Sprintf("  tls:\n    certificate: %s\n    key: %s\nauth:\n  htpasswd:\n    realm: test\n    path: %s\n",
			ca, write("tls.key", key), write("htpasswd", []byte(user)))}).addr

	cfg := store.Config{Repository: addr + "/godwit/uid1", CAFile: ca, DockerConfig: dir}
	push := func() error {
		_, err := client().Push(t.Context(), pushJob(t, cfg), nil)
		return err
	}
	if err := push(); !errdefs.IsUnauthorized(err) {
		t.Errorf("push without credentials: %v", err)
	}
	login := func(password string) {
		auth := base64.StdEncoding.EncodeToString([]byte("me:" + password))
		write("config.json", []byte(fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, addr, auth)))
	}
	login("wrong")
	if err := push(); !errdefs.IsUnauthorized(err) || strings.Contains(err.Error(), "wrong") {
		t.Errorf("push with a wrong password: %v", err)
	}
	login("secret")
	roundTrip(t, cfg)

	cfg.CAFile = ""
	if err := push(); !errdefs.IsFailedPrecondition(err) { // terminal: it does not pass by itself
		t.Errorf("push to a registry with an unknown certificate: %v", err)
	}
}

func certificate(t *testing.T) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	kd, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: kd})
}
