package store

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"godwit.dev/godwit/api/config"
)

// TestEtcdOf shows that files which cannot be used are refused by the key that names them.
func TestEtcdOf(t *testing.T) {
	dir := t.TempDir()
	none, text := filepath.Join(dir, "none"), filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		from config.Etcd
		key  string
	}{
		"an authority that is not there":   {config.Etcd{CA: none}, "controller.etcd.ca"},
		"an authority without certificate": {config.Etcd{CA: text}, "controller.etcd.ca"},
		"a certificate that is not there":  {config.Etcd{Cert: none, Key: none}, "controller.etcd.cert"},
		"a certificate that is none":       {config.Etcd{Cert: text, Key: text}, "controller.etcd.cert"},
	} {
		if _, err := EtcdOf(c.from); err == nil || !strings.HasPrefix(err.Error(), c.key+": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	cfg, err := EtcdOf(config.Etcd{Endpoints: []string{"http://e:1"}, Prefix: "/p/"})
	if err != nil || !slices.Equal(cfg.Endpoints, []string{"http://e:1"}) || cfg.Prefix != "/p/" || cfg.TLS == nil {
		t.Errorf("without files: %+v, %v", cfg, err)
	}
}
