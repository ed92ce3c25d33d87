package nodesetup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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
		root := t.TempDir()
		file := filepath.Join(root, containerdConfig)
		if c.before != "" {
			if err := replace(file, []byte(c.before)); err != nil {
				t.Fatal(err)
			}
		}
		err := imported(root)
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

// A configuration of containerd that is a link on the node is not replaced: another program keeps what it leads to, and
// this container may not see that. If it imports the files of packages already, there is nothing to do.
func TestImportedLink(t *testing.T) {
	for name, c := range map[string]struct {
		to, text string
		refused  bool
	}{
		"absolute":            {"/etc/static/c.toml", "version = 3\n", true},
		"relative":            {"../static/c.toml", "version = 3\n", true},
		"to nothing":          {"/etc/other/c.toml", "", true},
		"that imports it all": {"/etc/static/c.toml", "version = 3\n" + imports, false},
	} {
		root := t.TempDir()
		file, target := filepath.Join(root, containerdConfig), filepath.Join(root, "etc/static/c.toml")
		for _, dir := range []string{filepath.Dir(file), filepath.Dir(target)} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(os.WriteFile(target, []byte(c.text), 0o644), os.Symlink(c.to, file)); err != nil {
			t.Fatal(err)
		}
		err := imported(root)
		if c.refused != errdefs.IsFailedPrecondition(err) || !c.refused && err != nil ||
			c.refused && !strings.Contains(err.Error(), containerdConfig+" is a link") {
			t.Errorf("%s: %v", name, err)
		}
		if to, err := os.Readlink(file); err != nil || to != c.to {
			t.Errorf("%s: the link leads to %q: %v", name, to, err)
		}
		if got, err := os.ReadFile(target); err != nil || string(got) != c.text {
			t.Errorf("%s: it leads to %q: %v", name, got, err)
		}
	}
}

// Where a directory on the way is a link of the node, its file is found there, and not in this container.
func TestImportedThroughALink(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "data/containerd/config.toml")
	if err := replace(file, []byte("version = 3\n[grpc]\n")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "etc"), 0o755),
		os.Symlink("/data/containerd", filepath.Join(root, "etc/containerd"))); err != nil {
		t.Fatal(err)
	}
	if err := imported(root); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file); err != nil || !strings.Contains(string(got), "[grpc]") ||
		!strings.HasPrefix(string(got), "imports") {
		t.Errorf("%q: %v", got, err)
	}
}

// A file that only its owner may read, such as one with the password of a registry, stays so.
func TestImportedKeepsMode(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, containerdConfig)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("version = 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	owner := os.Getuid()
	if owner == 0 {
		owner = 65534
		if err := os.Chown(file, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	if err := imported(root); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if at := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != 0o600 || int(at.Uid) != owner {
		t.Errorf("mode %v of user %d, want 0600 of %d", info.Mode(), at.Uid, owner)
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

// The directories of the node may be links: what is written is found there by the node's own programs.
func TestConfigureLinks(t *testing.T) {
	root := t.TempDir()
	if err := replace(filepath.Join(root, "data/godwit/config.toml"), nil); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "etc"), 0o755),
		os.Symlink("/data/godwit", filepath.Join(root, "etc/godwit"))); err != nil {
		t.Fatal(err)
	}
	cfg, err := Setup{Root: root, Node: "a", Address: "10.0.0.7", Defaults: t.TempDir()}.configure()
	if err != nil || cfg.Node != "a" {
		t.Fatalf("%+v: %v", cfg, err)
	}
	if _, err := os.Stat(filepath.Join(root, "data/godwit/config.d", prefix+"node.toml")); err != nil {
		t.Error(err)
	}
}
