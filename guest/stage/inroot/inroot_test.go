package inroot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// tree is a root with links that point out of it.
func tree(t *testing.T) (dir string, r *Root) {
	t.Helper()
	outside := t.TempDir()
	dir = filepath.Join(outside, "root")
	if err := os.MkdirAll(filepath.Join(dir, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{
		"abs": "/in", "up": "../../../../..", "deep": "/in/../../../in", "dangling": "/none/x", "loop": "loop",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return dir, r
}

func TestPathsStayInside(t *testing.T) {
	tests := []struct{ path, want string }{
		{"/a/b/c", "a/b/c"}, {"abs/x", "in/x"}, {"/up/up/y", "y"}, {"/../../../z", "z"}, {"/deep/w", "in/w"},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			dir, r := tree(t)
			f, err := r.MkdirAll(tt.path)
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
			if fi, err := os.Stat(filepath.Join(dir, tt.want)); err != nil || !fi.IsDir() {
				t.Fatal(err)
			}
			f, err = r.Touch(tt.path + "/file")
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
			if _, err := os.Stat(filepath.Join(dir, tt.want, "file")); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestBadLinksAreErrors(t *testing.T) {
	_, r := tree(t)
	for path, want := range map[string]error{"loop/x": unix.ELOOP, "dangling": unix.ENOENT} {
		if _, err := r.MkdirAll(path); !errors.Is(err, want) {
			t.Fatalf("%s: %v", path, err)
		}
	}
}
