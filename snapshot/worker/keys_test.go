package worker

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
)

// What the configuration file demands reaches each job that reads a snapshot: one that is not sealed, or that no
// trusted key has signed, is refused by the name of the key.
func TestPolicyOfTheConfiguration(t *testing.T) {
	st := store.Config{Repository: store.LayoutPrefix + filepath.Join(t.TempDir(), "uid1")}
	receipt, err := client().Push(t.Context(), pushJob(t, st), nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	public := filepath.Join(dir, "trusted.pub")
	const key = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END " +
		"PUBLIC KEY-----\n"
	sealing := filepath.Join(dir, "seal.key")
	for path, data := range map[string]string{public: key, sealing: base64.StdEncoding.EncodeToString(make([]byte, 32))} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for demanded, text := range map[string]string{
		"":              "",
		"seal.required": "[seal]\nkey_files = [\"" + sealing + "\"]\nrequired = true\n",
		"sign.trusted":  "[sign]\ntrusted = [\"" + public + "\"]\nrequired = true\n",
	} {
		path := filepath.Join(dir, "config.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		keys, place := KeysOf(cfg), Place{Store: st, Digest: receipt.Digest}
		place.Keys = keys
		c := client()
		for job, do := range map[string]func() error{
			"open": func() error {
				_, err := c.Open(t.Context(), OpenJob{Store: st, Keys: keys, Digest: receipt.Digest})
				return err
			},
			"verify": func() error {
				_, err := c.Verify(t.Context(), VerifyJob{Store: st, Keys: keys, Digest: receipt.Digest}, nil)
				return err
			},
			"fill": func() error {
				return c.Fill(t.Context(), FillJob{Store: st, Keys: keys, Digest: receipt.Digest,
					Spaces: []Space{{Name: "ram0", File: file(t, nil)}}}, nil)
			},
			"diff": func() error { _, err := c.Diff(t.Context(), DiffJob{From: place, To: place}); return err },
		} {
			err := do()
			if demanded == "" && err != nil || demanded != "" && (!errdefs.IsPermissionDenied(err) ||
				!strings.Contains(err.Error(), demanded)) {
				t.Errorf("%q is demanded, %s: %v", demanded, job, err)
			}
		}
	}
}

// Keys that a controller has handed over seal and sign, and those of the node do not. After a rotation what was made
// before opens still, also what the node sealed with its own before. No file has a key. Without its key no snapshot
// opens, and a key that is none fails the job: it is never left away.
func TestHandedKeys(t *testing.T) {
	dir := t.TempDir()
	at := func(name string, handed *store.Keys) store.Config {
		return store.Config{Repository: store.LayoutPrefix + filepath.Join(dir, name), Keys: handed}
	}
	key := func(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }
	signer := func(b byte) (private, public []byte) {
		k := ed25519.NewKeyFromSeed(key(b))
		private, err := x509.MarshalPKCS8PrivateKey(k)
		if err == nil {
			public, err = x509.MarshalPKIXPublicKey(k.Public())
		}
		if err != nil {
			t.Fatal(err)
		}
		return private, public
	}
	file := func(name string, data []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first, firstPublic := signer(1)
	second, _ := signer(2)
	own, ownPublic := signer(9)
	node := Keys{} // its own keys
	node.Seal.KeyFiles = []string{file("seal", []byte(base64.StdEncoding.EncodeToString(key(9))))}
	node.Sign.KeyFile = file("sign", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: own}))
	before := &store.Keys{Seal: [][]byte{key(1)}, Sign: first}
	after := &store.Keys{Seal: [][]byte{key(2), key(1)}, Sign: second, Trusted: [][]byte{firstPublic}}
	push := func(name string, handed *store.Keys) snapshot.Receipt {
		t.Helper()
		job := pushJob(t, at(name, handed))
		job.Keys = node
		r, err := client().Push(t.Context(), job, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	opens := func(name string, keys Keys, handed *store.Keys, r snapshot.Receipt) error {
		_, err := client().Open(t.Context(), OpenJob{Store: at(name, handed), Keys: keys, Digest: r.Digest})
		return err
	}
	must := node // what it opens has to be sealed and signed
	must.Seal.Required, must.Sign.Required = true, true
	one, old := push("one", before), push("old", nil)
	for what, err := range map[string]error{
		"by the keys that made it": opens("one", must, before, one), "after a rotation": opens("one", must, after, one),
		"what the node made before": opens("old", must, after, old),
	} {
		if err != nil {
			t.Errorf("open %s: %v", what, err)
		}
	}
	two := push("one", after)
	stranger := Keys{}
	stranger.Sign.Trusted = []string{file("pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: ownPublic}))}
	stranger.Sign.Required = true
	for what, err := range map[string]error{
		"without keys": opens("one", Keys{}, nil, one), "by the node's own": opens("one", node, nil, one),
		"by the keys of before": opens("one", node, before, two),
	} {
		if !errdefs.IsFailedPrecondition(err) {
			t.Errorf("open %s: %v", what, err)
		}
	}
	if err := opens("one", stranger, &store.Keys{Seal: after.Seal}, two); !errdefs.IsPermissionDenied(err) {
		t.Errorf("signed by the class, and the node alone is trusted: %v", err)
	}
	for what, bad := range map[string]*store.Keys{
		"a short key": {Seal: [][]byte{key(1)[1:]}}, "no signing key": {Sign: []byte("x")},
		"trust alone": {Trusted: [][]byte{firstPublic}}, "no public key": {Sign: first, Trusted: [][]byte{[]byte("x")}},
	} {
		job := pushJob(t, at("bad", bad))
		if _, err := client().Push(t.Context(), job, nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("push with %s: %v", what, err)
		}
	}
	files := 0
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		files++
		for _, k := range [][]byte{key(1), key(2), first, second, []byte(base64.StdEncoding.EncodeToString(key(1)))} {
			if bytes.Contains(data, k) {
				t.Errorf("%s has a key", path)
			}
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("%d files, %v", files, err)
	}
}
