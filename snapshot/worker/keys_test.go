package worker

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
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
