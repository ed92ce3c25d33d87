package treelist

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Every property that the list is there to compare changes it.
func TestListShowsEachDifference(t *testing.T) {
	tests := map[string]func(dir string) error{
		"content":  func(d string) error { return os.WriteFile(d+"/a", []byte("B"), 0o600) },
		"mode":     func(d string) error { return os.Chmod(d+"/a", 0o644) },
		"name":     func(d string) error { return os.Rename(d+"/a", d+"/z") },
		"new name": func(d string) error { return os.WriteFile(d+"/new", nil, 0o600) },
		"link":     func(d string) error { return os.Link(d+"/a", d+"/hard") },
		"mtime":    func(d string) error { return os.Chtimes(d+"/a", time.Time{}, time.Unix(1, 1)) },
		"xattr":    func(d string) error { return unix.Setxattr(d+"/a", "user.x", []byte("1"), 0) },
		"target":   func(d string) error { return os.Remove(d + "/l") },
		"type": func(d string) error {
			if err := os.Remove(d + "/l"); err != nil {
				return err
			}
			return os.Mkdir(d+"/l", 0o777)
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "a"), []byte("A"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("a", filepath.Join(dir, "l")); err != nil {
				t.Fatal(err)
			}
			var before, again, after bytes.Buffer
			for _, b := range []*bytes.Buffer{&before, &again} {
				if err := Write(b, dir); err != nil {
					t.Fatal(err)
				}
			}
			if before.String() != again.String() || strings.Count(before.String(), "\n") != 3 {
				t.Errorf("list is not stable:\n%s%s", &before, &again)
			}
			if err := change(dir); err != nil {
				t.Fatal(err)
			}
			if err := Write(&after, dir); err != nil {
				t.Fatal(err)
			}
			if before.String() == after.String() {
				t.Errorf("list does not show it:\n%s", &after)
			}
		})
	}
}

func TestSkip(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "proc", "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Write(&b, dir, "proc"); err != nil || strings.Count(b.String(), "\n") != 1 {
		t.Errorf("list is %q, %v", &b, err)
	}
}
