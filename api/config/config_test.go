package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/pelletier/go-toml/v2"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestLoadPrecedence(t *testing.T) {
	dir := t.TempDir()
	named, env := filepath.Join(dir, "a", "named.toml"), filepath.Join(dir, "b", "env.toml")
	write(t, named, "node = 'named'\n[vm]\nmemory = '1GiB'\n")
	write(t, filepath.Join(dir, "a", "config.d", "20.toml"), "[vm]\nmemory = '3GiB'\n")
	write(t, filepath.Join(dir, "a", "config.d", "10.toml"), "log = {level = 'debug'}\n[vm]\nmemory = '2GiB'\n")
	write(t, filepath.Join(dir, "a", "config.d", "30.bak"), "not toml")
	write(t, env, "node = 'env'\n")
	t.Setenv(PathVariable, env)

	c, err := Load(named)
	if err != nil {
		t.Fatal(err)
	}
	if c.Node != "named" || c.VM.Memory != 3<<30 || c.Log.Level != "debug" || c.VM.WritableSize != 8<<30 {
		t.Errorf("Load(named) = %+v", c)
	}
	if c, err = Load(""); err != nil || c.Node != "env" {
		t.Errorf("Load with %s = %+v, %v", PathVariable, c, err)
	}
}

func TestLoadMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.toml")
	_, err := Load(path)
	if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), path) {
		t.Errorf("Load of a missing file: %v, want NotFound naming it", err)
	}
	t.Setenv(PathVariable, path)
	if _, err := Load(""); !errdefs.IsNotFound(err) {
		t.Errorf("Load of a missing %s: %v, want NotFound", PathVariable, err)
	}
}

func TestDefaults(t *testing.T) {
	c, err := Parse("empty", nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.TLS.Cert != "/var/lib/godwit/pki/node.crt" || c.RAMDir != "/run/godwit/ram" || c.Node == "" {
		t.Errorf("derived values: %+v", c)
	}
	written := *c
	written.Registry.Layout = "" // it is derived anew
	text, err := toml.Marshal(&written)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse("again", text)
	if err != nil {
		t.Fatalf("parse what was written: %v\n%s", err, text)
	}
	if d := cmp.Diff(c, again, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("round trip (-want +got):\n%s", d)
	}
}

func TestRefused(t *testing.T) {
	long := "/" + strings.Repeat("r", 80)
	tests := []struct{ name, text, want string }{
		{"unknown key", "node = 'a'\n\n[vm]\nmemroy = '1GiB'\n", `file.toml line 4: unknown key "vm.memroy"`},
		{"relative key file", "[seal]\nkey_files = ['seal.key']\n", "seal.key_files"},
		{"relative identity", "[seal]\nidentity_file = '../id'\n", "seal.identity_file"},
		{"recipient", "[seal]\nrecipients = ['ssh-rsa x']\n", "seal.recipients"},
		{"unknown table", "[vmn]\nmemory = '1GiB'\n", "line 1"},
		{"syntax", "node = \n", "line 1"},
		{"wrong type", "\nnode = 3\n", "line 2"},
		{"size text", "[vm]\nmemory = '1 gig'\n", "line 2"},
		{"size too big", "[vm]\nmemory = '99999999TiB'\n", "line 2"},
		{"zero size", "[vm]\nmemory = 0\n", "vm.memory"},
		{"negative size", "[vm]\nmemory = -1\n", "line 2"},
		{"small disk", "[vm]\nwritable_size = '1MiB'\n", "vm.writable_size"},
		{"duration text", "[timeouts]\nboot = 'soon'\n", "line 2"},
		{"duration number", "[timeouts]\nboot = 60\n", "timeouts.boot"},
		{"duration zero", "[timeouts]\nabort = '0s'\n", "timeouts.abort"},
		{"relative path", "state_dir = 'var'\n", "state_dir"},
		{"long run_dir", "run_dir = '" + long + "'\n", "run_dir"},
		{"two stores", "[registry]\nrepository = 'r/a'\nlayout = '/l'\n", "registry: repository and layout"},
		{"repository with scheme", "[registry]\nrepository = 'https://r/a'\n", "registry.repository"},
		{"repository without path", "[registry]\nrepository = 'r:5000'\n", "registry.repository"},
		{"repository with tag", "[registry]\nrepository = 'r/a:b'\n", "registry.repository"},
		{"two controllers", "[controller]\nlisten = 'a:1'\naddress = 'b:1'\n", "controller"},
		{"controller without port", "[controller]\naddress = 'b'\n", "controller.address"},
		{"one controller of two without port", "[controller]\naddress = 'a:1, b'\n", "controller.address"},
		{"spans without TLS", "[tracing]\nendpoint = 'http://192.0.2.1:4318'\n", "tracing.endpoint"},
		{"spans to nowhere", "[tracing]\nendpoint = 'collector:4318'\n", "tracing.endpoint"},
		{"loss policy", "[node_loss]\npolicy = 'oldest'\n", "node_loss.policy"},
		{"loss in no time", "[node_loss]\nafter = '16s'\n", "node_loss.after"},
		{"loss without a fence", "[node_loss]\npolicy = 'newest'\n", "node_loss.fence"},
		{"a fence anywhere", "[node_loss]\npolicy = 'newest'\nfence = ['fence', '-f']\n", "node_loss.fence"},
		{"etcd and a controller", "[controller]\naddress = 'a:1'\n[controller.etcd]\nendpoints = ['https://e:1']\n",
			"controller.etcd.endpoints"},
		{"etcd without TLS", "[controller.etcd]\nendpoints = ['http://192.0.2.1:2379']\n", "controller.etcd.endpoints"},
		{"etcd without scheme", "[controller.etcd]\nendpoints = ['e:2379']\n", "controller.etcd.endpoints"},
		{"etcd without port", "[controller.etcd]\nendpoints = ['https://e']\n", "controller.etcd.endpoints"},
		{"etcd prefix", "[controller.etcd]\nendpoints = ['https://e:1']\nprefix = 'godwit'\n", "controller.etcd.prefix"},
		{"etcd key alone", "[controller.etcd]\nendpoints = ['https://e:1']\nkey = '/k'\n", "controller.etcd.cert"},
		{"etcd ca", "[controller.etcd]\nendpoints = ['https://e:1']\nca = 'k'\n", "controller.etcd.ca"},
		{"open metrics", "[metrics]\naddress = '0.0.0.0:9100'\n", "metrics.address"},
		{"named metrics", "[metrics]\naddress = 'localhost:9100'\n", "metrics.address"},
		{"kind", "[vmm]\nkind = 'xen'\n", "vmm.kind"},
		{"accel", "[vmm]\naccel = 'hvf'\n", "vmm.accel"},
		{"huge pages", "ram_huge_pages = '4KiB'\n", "ram_huge_pages"},
		{"user of the system", "[vmm]\nfirst_user = 33\n", "vmm.first_user"},
		{"level", "[log]\nlevel = 'loud'\n", "log.level"},
		{"small logs", "[logs]\nmax_bytes = '1MB'\n", "logs.max_bytes"},
		{"no log", "[logs]\nfiles = 0\n", "logs.files"},
		{"host network", "host_network = 'yes'\n", "host_network"},
		{"restore", "[worker]\nrestore = 'later'\n", "worker.restore: \"later\" is not one of eager, lazy, auto"},
		{"concurrency", "[worker]\nconcurrency = 0\n", "worker.concurrency"},
		{"node", "node = 'a/b'\n", "node"},
		{"template of a boot", "[template.boot]\nafter = 0\n", "template.boot.after"},
		{"template by its old name", "[template]\nmax = 0\n", "template.boot.max"},
		{"type of an old name", "[template]\nmax = 'x'\n", "line 2"},
		{"key by both names", "[template]\nmode = 'on'\n[template.boot]\nmode = 'off'\n",
			"template.mode: it is the old name of template.boot.mode"},
		{"tables", "[template.image]\nmax_size = 5\n", "template.image.max_size"},
		{"use of golden snapshots", "[template.image]\nmode = 'maybe'\n", "template.image.mode"},
		{"stdio", "stdio_uri = 'http://x'\n", "stdio_uri"},
		{"shared log", "stdio_uri = 'file:///var/log/all.log'\n", "stdio_uri"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("file.toml", []byte(tt.text))
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), tt.want) ||
				!strings.Contains(err.Error(), "file.toml") {
				t.Errorf("Parse = %v, want InvalidArgument with file.toml and %q", err, tt.want)
			}
		})
	}
}

func TestAccepted(t *testing.T) {
	tests := []struct {
		name, text string
		check      func(*Config) bool
	}{
		{"plain bytes", "[vm]\nmemory = 134217728\n", func(c *Config) bool { return c.VM.Memory == 128<<20 }},
		{"bytes as text", "[vm]\nmemory = '134217728'\n", func(c *Config) bool { return c.VM.Memory == 128<<20 }},
		{"duration", "[timeouts]\nboot = '1m30s'\n", func(c *Config) bool {
			return c.Timeouts.Boot == Duration(90*time.Second)
		}},
		{"loopback metrics", "[metrics]\naddress = '[::1]:9100'\n", func(c *Config) bool { return !c.MetricsTLS() }},
		{"TLS metrics", "[metrics]\naddress = '0.0.0.0:9100'\n[tls]\nca='/a'\ncert='/b'\nkey='/c'\n", func(c *Config) bool {
			return c.MetricsTLS()
		}},
		{"repository", "[registry]\nrepository = 'registry.example:5000/a/b-c'\n", func(c *Config) bool {
			return c.UsesRecords() && c.HasStore() && !c.Registry.Own
		}},
		{"loss", "[node_loss]\npolicy = 'newest'\nfence = ['/bin/fence', '-f']\n", func(c *Config) bool {
			return c.NodeLoss.After == Duration(2*time.Minute) && len(c.NodeLoss.Fence) == 2
		}},
		{"controllers", "[controller]\naddress = 'n1:7443, n2:7443'\n", func(c *Config) bool {
			return slices.Equal(c.Controller.Addresses(), []string{"n1:7443", "n2:7443"})
		}},
		{"etcd", "[controller]\nlisten = 'n1:7443'\n[controller.etcd]\nendpoints = ['http://127.0.0.1:2379', " +
			"'https://e:1']\n", func(c *Config) bool {
			return c.Controller.Etcd.Prefix == "/godwit/"
		}},
		{"controller", "[controller]\naddress = 'n1:7443'\n", func(c *Config) bool {
			return c.UsesRecords() && c.Registry.Own
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse("t", []byte(tt.text))
			if err != nil || !tt.check(c) {
				t.Errorf("Parse = %+v, %v", c, err)
			}
		})
	}
}

// Keys by the names of the release before count, in the order of the files, as all others do.
// Each is told once with its new name.
func TestRenamedKeys(t *testing.T) {
	dir := t.TempDir()
	main := filepath.Join(dir, "config.toml")
	write(t, main, "[template]\nmode = 'off'\nafter = 3\nmax = 4\nmax_size = '1GiB'\n")
	write(t, filepath.Join(dir, "config.d", "1.toml"), "[template.boot]\nmax = 5\n")
	write(t, filepath.Join(dir, "config.d", "2.toml"), "[template]\nafter = 6\n")
	c, err := Load(main)
	if err != nil {
		t.Fatal(err)
	}
	want := Template{Boot: BootTemplates{Mode: "off", After: 6, Max: 5, MaxSize: 1 << 30}, Image: Default().Template.Image}
	if d := cmp.Diff(want, c.Template); d != "" {
		t.Errorf("template (-want +got):\n%s", d)
	}
	var told []string
	for _, r := range c.Renamed {
		told = append(told, filepath.Base(r.File)+" "+r.Old+" "+r.New)
	}
	if d := cmp.Diff([]string{
		"config.toml template.mode template.boot.mode", "config.toml template.after template.boot.after",
		"config.toml template.max template.boot.max",
		"config.toml template.max_size template.boot.max_size", "2.toml template.after template.boot.after",
	}, told); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}

// Equal names in two namespaces share no path.
func TestPathsOfNamespaces(t *testing.T) {
	c := Default()
	c.RAMDir = "/ram"
	for name, path := range map[string]func(ns, id string) string{"dir": c.VMDir, "run": c.VMRunDir, "ram": c.RAMFile} {
		if path("a", "vm") == path("b", "vm") || path("a", "vm") == path("a", "vm2") {
			t.Errorf("%s: two VMs share %s", name, path("a", "vm"))
		}
	}
	if s := filepath.Join(c.VMRunDir(strings.Repeat("n", 76), strings.Repeat("i", 76)),
		strings.Repeat("s", socketName)); len(s) > maxSocket {
		t.Errorf("socket path %s is longer than %d", s, maxSocket)
	}
}

func keys(prefix string, t reflect.Type) []string {
	var all []string
	for f := range t.Fields() {
		if f.Tag.Get("toml") == "-" {
			continue
		}
		key := prefix + f.Tag.Get("toml")
		if f.Type.Kind() == reflect.Struct {
			all = append(all, keys(key+".", f.Type)...)
		} else {
			all = append(all, key)
		}
	}
	return all
}

func TestDocumentationNamesEveryKey(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, m[1])
	}
	want := keys("", reflect.TypeFor[Config]())
	slices.Sort(want)
	slices.Sort(documented)
	if d := cmp.Diff(want, documented); d != "" {
		t.Errorf("keys of Config and of docs/reference/configuration.md (-code +page):\n%s", d)
	}
}

// Another process has to read the same file, whatever its environment.
func TestPathIsAbsolute(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if got := Path("a.toml"); got != filepath.Join(dir, "a.toml") {
		t.Errorf("Path of a relative name = %q", got)
	}
	t.Setenv(PathVariable, "b.toml")
	if got := Path(""); got != filepath.Join(dir, "b.toml") {
		t.Errorf("Path of the environment's name = %q", got)
	}
	t.Setenv(PathVariable, "")
	if got := Path(""); got != "" {
		t.Errorf("Path of the default = %q", got)
	}
}

// A node is one of Kubernetes by the files that its set-up writes, and by no key: a shim of the release before reads
// the same files.
func TestKubernetes(t *testing.T) {
	for name, want := range map[string]bool{"kubernetes-node.toml": true, "10-kubernetes.toml": false,
		"kubernetes-node.bak": false} {
		dir := t.TempDir()
		main, more := filepath.Join(dir, "config.toml"), filepath.Join(dir, "config.d")
		if err := errors.Join(os.WriteFile(main, nil, 0o600), os.Mkdir(more, 0o700),
			os.WriteFile(filepath.Join(more, name), []byte("node = \"a\"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		c, err := Load(main)
		if err != nil {
			t.Fatal(err)
		}
		if c.Kubernetes != want {
			t.Errorf("%s: %t", name, c.Kubernetes)
		}
	}
}
