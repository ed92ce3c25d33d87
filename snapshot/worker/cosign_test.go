//go:build integration && cosign

package worker

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"godwit.dev/godwit/snapshot/sign"
)

// Cosign is the program that GODWIT_COSIGN names. In a real registry it takes the signature of a snapshot for one
// of our key, and for none of another key.
func TestCosign(t *testing.T) {
	cosign := os.Getenv("GODWIT_COSIGN")
	if cosign == "" {
		t.Fatal("GODWIT_COSIGN names no cosign")
	}
	for name, program := range registries(t) {
		t.Run(name, func(t *testing.T) {
			cfg := startRegistry(t, &registry{program: program}).config(t)
			private, public := signingKey(t)
			_, other := signingKey(t)
			job := pushJob(t, cfg)
			job.Keys = Keys{Sign: sign.Config{KeyFile: private}}
			receipt, err := client().Push(t.Context(), job, nil)
			if err != nil {
				t.Fatal(err)
			}
			verify := func(key string) ([]byte, error) {
				return exec.CommandContext(t.Context(), cosign, "verify", "--key", key, "--insecure-ignore-tlog",
					"--allow-http-registry",
					cfg.Repository+"@"+receipt.Digest.String()).CombinedOutput()
			}
			out, err := verify(public)
			t.Logf("%s", out)
			if err != nil {
				t.Errorf("cosign verify: %v", err)
			}
			if out, err := verify(other); err == nil {
				t.Errorf("cosign takes it for signed by another key: %s", out)
			}
		})
	}
}

func signingKey(t *testing.T) (private, public string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := x509.MarshalPKIXPublicKey(crypto.PublicKey(key.Public()))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	private, public = filepath.Join(dir, "key.pem"), filepath.Join(dir, "pub.pem")
	for path, b := range map[string]*pem.Block{private: {Type: "PRIVATE KEY", Bytes: der},
		public: {Type: "PUBLIC KEY", Bytes: pub}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return private, public
}
