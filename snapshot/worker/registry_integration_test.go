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
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
)

// registry starts the registry built under bin/tools and returns its host:port.
func registry(t *testing.T, extra string) string {
	t.Helper()
	bin, err := filepath.Abs("../../bin/tools/registry")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("prerequisite: %v (make build-tools)", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	dir := t.TempDir()
	conf := filepath.Join(dir, "config.yml")
	text := fmt.Sprintf("version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: %s\n  delete:\n    enabled: true\nhttp:\n  addr: %s\n%s", dir, addr, extra)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "serve", conf)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(20 * time.Second); ; {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
			return addr
		}
		if time.Now().After(deadline) {
			t.Fatalf("registry does not listen on %s: %v", addr, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestRoundTripRegistry(t *testing.T) {
	addr := registry(t, "")
	roundTrip(t, store.Config{Repository: addr + "/godwit/uid1", PlainHTTP: true, DockerConfig: t.TempDir()})
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
	addr := registry(t, fmt.Sprintf("  tls:\n    certificate: %s\n    key: %s\nauth:\n  htpasswd:\n    realm: test\n    path: %s\n",
		ca, write("tls.key", key), write("htpasswd", []byte(user))))

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
	if err := push(); err == nil {
		t.Error("pushed to a registry with an unknown certificate")
	}
}

// P-11 and List against the real one; a blob of another repository is mounted.
func TestManageRegistry(t *testing.T) {
	cfg := store.Config{Repository: registry(t, "") + "/godwit/uid1", PlainHTTP: true, DockerConfig: t.TempDir()}
	st, err := store.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := snapshot.List(t.Context(), st); err != nil || len(list) != 0 {
		t.Errorf("list of a repository that is not there: %v, %v", list, err)
	}
	job := pushJob(t, cfg)
	receipt, err := client().Push(t.Context(), job, nil)
	if err != nil {
		t.Fatal(err)
	}
	list, err := snapshot.List(t.Context(), st)
	if err != nil || len(list) != 1 || list[0].Digest != receipt.Digest || list[0].Ref != job.Ref {
		t.Errorf("list: %+v, %v", list, err)
	}
	cfg2 := cfg
	cfg2.Repository = strings.Replace(cfg.Repository, "uid1", "uid2", 1)
	other, err := store.Open(cfg2)
	if err != nil {
		t.Fatal(err)
	}
	c := store.Content{Digest: digest.FromString("state"), Size: 5, From: cfg.Repository, Open: func() (io.ReadCloser, error) {
		return nil, errors.New("asked for the bytes of a blob that can be mounted")
	}}
	if err := other.Put(t.Context(), store.Blob(c.Digest), c); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := snapshot.DeleteTag(t.Context(), st, receipt.Tag); err != nil {
			t.Error(err)
		}
	}
	if list, err := snapshot.List(t.Context(), st); err != nil || len(list) != 0 {
		t.Errorf("list after delete: %v, %v", list, err)
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
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	kd, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: kd})
}
