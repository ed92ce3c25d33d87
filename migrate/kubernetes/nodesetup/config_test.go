package nodesetup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// containerd's file imports the files of packages afterwards, and keeps all else.
func TestImported(t *testing.T) {
	const ours = "imports = ['/etc/containerd/conf.d/*.toml']\n"
	for name, c := range map[string]struct{ before, after string }{
		"none":      {"", "version = 3\n" + ours},
		"no import": {"version = 3\n[grpc]\n", ours + "version = 3\n[grpc]\n"},
		"empty":     {"version = 3\nimports = []\n", "version = 3\n" + ours},
		"ours":      {"version = 3\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n", ""},
		"others":    {"version = 3\nimports = ['/etc/other.toml']\n", "refused"},
	} {
		file := filepath.Join(t.TempDir(), "containerd", "config.toml")
		if c.before != "" {
			if err := replace(file, []byte(c.before)); err != nil {
				t.Fatal(err)
			}
		}
		err := imported(file)
		if c.after == "refused" {
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "add '/etc/containerd/conf.d/*.toml'") {
				t.Errorf("%s: %v", name, err)
			}
			c.after = c.before
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.after == "" {
			c.after = c.before
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != c.after {
			t.Errorf("%s: %q, want %q: %v", name, got, c.after, err)
		}
	}
}

// The node's configuration is what the cluster says, with the node's own name and address.
func TestConfigure(t *testing.T) {
	defaults, root := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{"10-node.toml": "[controller]\naddress = \"c:7443\"\n",
		"20-settings.toml": "[vm]\nmemory = \"1GiB\"\n"} {
		if err := replace(filepath.Join(defaults, name), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := replace(filepath.Join(root, "etc/godwit/config.toml"), []byte("[log]\nlevel = \"debug\"\n")); err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(root, "etc/godwit/config.d/kubernetes-old.toml")
	if err := replace(old, []byte("[vm]\nmemory = \"2GiB\"\n")); err != nil {
		t.Fatal(err)
	}
	cfg, err := Setup{Root: root, Node: "a", Address: "10.0.0.7", Defaults: defaults}.configure()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Node != "a" || cfg.Peer.Listen != "10.0.0.7:7444" || cfg.Controller.Address != "c:7443" ||
		cfg.VM.Memory != 1<<30 || cfg.Log.Level != "debug" || !cfg.Kubernetes {
		t.Errorf("%+v", cfg)
	}
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file of before stays: %v", err)
	}
}
