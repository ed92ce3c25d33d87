package rootfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
)

// A program that is nowhere in the root file system fails the preparation. One that is there does not, also
// by links. Nor does one that may be in what covers the root file system, or on a disk that was written to.
func TestMissingProgram(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	for _, d := range []string{"bin", "usr/local", "data", "loop"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "bin/tool"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		"usr/bin": "/bin", "bin/alias": "../usr/../bin/tool", "bin/broken": "nothing", "bin/out": "../../../etc/passwd",
		"bin/data": "/data/tool", "loop/a": "b", "loop/b": "a", "run": "data",
	} {
		if err := os.Symlink(to, filepath.Join(root, from)); err != nil {
			t.Fatal(err)
		}
	}
	search := []string{"/usr/local", "/usr/bin"}
	for name, c := range map[string]struct {
		program Program
		missing string // in the error; empty: there is none
	}{
		"in PATH":             {Program{Name: "tool", Search: search}, ""},
		"by a link":           {Program{Name: "alias", Search: search}, ""},
		"not in PATH":         {Program{Name: "none", Search: search}, `exec: "none": executable file not found in $PATH`},
		"no PATH":             {Program{Name: "tool"}, `exec: "tool": executable file not found in $PATH`},
		"path":                {Program{Name: "/bin/tool"}, ""},
		"no such path":        {Program{Name: "/bin/none/x"}, `exec: "/bin/none/x": stat /bin/none/x: no such file`},
		"path through a file": {Program{Name: "/bin/tool/x"}, `exec: "/bin/tool/x": stat`},
		"broken link":         {Program{Name: "/bin/broken"}, `exec: "/bin/broken": stat`},
		"a link out of it":    {Program{Name: "/bin/out"}, `exec: "/bin/out": stat`},
		"relative":            {Program{Name: "./tool", Dir: "/bin"}, ""},
		"relative, elsewhere": {Program{Name: "./tool", Dir: "/data"}, `exec: "./tool": stat`},
		"covered":             {Program{Name: "/data/none", Covered: []string{"/data"}}, ""},
		"in a missing one":    {Program{Name: "/sbin/init", Covered: []string{"/sbin/init"}}, ""},
		"by a missing one":    {Program{Name: "/sbin/../bin/tool", Covered: []string{"/sbin/init"}}, ""},
		"a link to covered":   {Program{Name: "/bin/data", Covered: []string{"/data"}}, ""},
		"covered by a link":   {Program{Name: "/data/none", Covered: []string{"/run/x", "/run"}}, ""},
		"not below covered":   {Program{Name: "/database", Covered: []string{"/data"}}, `exec: "/database"`},
		"links in a circle":   {Program{Name: "/loop/a"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			mounts := []*types.Mount{{Type: "bind", Source: root, Options: []string{"rbind"}}}
			_, err := Prepare(t.Context(), mounts, Paths{Cache: openCache(t, dir, 1<<30), Dir: t.TempDir(),
				WritableSize: 64 << 20, Program: c.program})
			if c.missing == "" && err != nil {
				t.Error(err)
			}
			if c.missing != "" && (!errdefs.IsNotFound(err) || !strings.Contains(err.Error(), c.missing)) {
				t.Errorf("got %v, want %s", err, c.missing)
			}
		})
	}
	t.Run("disk that was written to", func(t *testing.T) {
		mounts := []*types.Mount{{Type: "bind", Source: root, Options: []string{"rbind"}}}
		paths := Paths{Cache: openCache(t, dir, 1<<30), Dir: t.TempDir(), WritableSize: 64 << 20}
		if _, err := Prepare(t.Context(), mounts, paths); err != nil {
			t.Fatal(err)
		}
		paths.Program = Program{Name: "/bin/none"}
		if _, err := Prepare(t.Context(), mounts, paths); err != nil {
			t.Error(err)
		}
	})
}
