package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A runtime_path of godwit's runtime is found in containerd's file and in those that it imports. Another runtime's is
// none. A file that cannot be read is no proof that it has none.
func TestRuntimePathIsFound(t *testing.T) {
	const table = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.godwit]\n" +
		"runtime_type = 'io.containerd.godwit.v1'\n"
	for name, c := range map[string]struct {
		main, imported string
		ok             bool
		says           string
	}{
		"none":           {table, "", true, "not set"},
		"in the file":    {table + "runtime_path = '/opt/shim'\n", "", false, "config.toml"},
		"imported":       {"imports = ['conf.d/*.toml']\n", table + "runtime_path = '/opt/shim'\n", false, "godwit.toml"},
		"another's":      {strings.ReplaceAll(table, "godwit", "runc") + "runtime_path = '/opt/shim'\n", "", true, "not set"},
		"no TOML":        {"[", "", false, "config.toml"},
		"imported badly": {"imports = ['conf.d/*.toml']\n", "[", false, "godwit.toml"},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "config.toml")
		if err := os.Mkdir(filepath.Join(dir, "conf.d"), 0o700); err != nil {
			t.Fatal(err)
		}
		for path, text := range map[string]string{file: c.main, filepath.Join(dir, "conf.d", "godwit.toml"): c.imported} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f := checkRuntimePath(file, "io.containerd.godwit.v1")
		if f.OK != c.ok || f.Fatal || !strings.Contains(f.Detail, c.says) || (f.Remedy == "") != c.ok {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if f := checkRuntimePath(filepath.Join(t.TempDir(), "none"), "r"); !f.OK {
		t.Errorf("without a file: %+v", f)
	}
}

// What containerd's CRI needs to know of godwit's runtime is looked for in all files together.
func TestHandlerForPods(t *testing.T) {
	const table = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.godwit]\n" +
		"runtime_type = 'io.containerd.godwit.v1'\n"
	whole, err := os.ReadFile("../packaging/containerd-godwit.toml")
	if err != nil {
		t.Fatal(err)
	}
	const imports = "imports = ['conf.d/*.toml']\n"
	for name, c := range map[string]struct{ main, imported, says string }{
		"none":          {"", "", "no runtime handler"},
		"the package's": {imports, string(whole), "as godwit needs it"},
		"all passes": {table + "pod_annotations = ['*/*']\ncontainer_annotations = ['x/*', 'godwit.dev/*']\n" +
			"privileged_without_host_devices = true\nsnapshotter = 'erofs'\n", "", "as godwit needs it"},
		"no annotations": {table, "", "lacks pod_annotations = ['godwit.dev/*'], container_annotations"},
		"one annotation": {table + "pod_annotations = ['godwit.dev/memory']\n", "", "pod_annotations"},
		"devices":        {table, "", "privileged_without_host_devices = true"},
		"later devices": {imports + table, strings.ReplaceAll(string(whole), "_devices = true", "_devices = false"),
			"privileged_without_host_devices = true"},
		"snapshotter": {imports + table + "snapshotter = 'zfs'\n", string(whole), "instead of 'zfs'"},
		"no TOML":     {"[", "", "config.toml"},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "config.toml")
		if err := os.Mkdir(filepath.Join(dir, "conf.d"), 0o700); err != nil {
			t.Fatal(err)
		}
		for path, text := range map[string]string{file: c.main, filepath.Join(dir, "conf.d", "godwit.toml"): c.imported} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f := checkHandler(file, "io.containerd.godwit.v1")
		good := strings.Contains(c.says, "needs it") || strings.HasPrefix(c.says, "no runtime")
		if f.OK != good || f.Fatal || !strings.Contains(f.Detail, c.says) || (f.Remedy == "") != good {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if f := checkHandler(filepath.Join(t.TempDir(), "none"), "r"); !f.OK {
		t.Errorf("without a file: %+v", f)
	}
}
