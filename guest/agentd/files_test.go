package agentd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/stage/inroot"
)

// A hard link is one more name of a file that was copied before, and never of something else.
func TestCopyHardLink(t *testing.T) {
	dir := t.TempDir()
	root, err := inroot.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	put := func(path string, mode uint32, link string, data string) error {
		_, err := copyFile(root, &agentv1.File{Path: path, Mode: mode, Link: link, Data: []byte(data),
			Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())})
		return err
	}
	for _, err := range []error{
		put("/bin/busybox", unix.S_IFREG|0o755, "", "program"),
		put("/bin/ls", unix.S_IFREG|0o644, "", "what the image has there"),
		put("/bin/ls", unix.S_IFMT|0o755, "/bin/busybox", ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var st, other unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "bin/ls"), &st); err != nil {
		t.Fatal(err)
	}
	if err := unix.Stat(filepath.Join(dir, "bin/busybox"), &other); err != nil {
		t.Fatal(err)
	}
	if st.Ino != other.Ino || st.Mode&0o777 != 0o755 {
		t.Errorf("inodes %d and %d, mode %o", st.Ino, other.Ino, st.Mode)
	}
	if err := put("/bin/sh", unix.S_IFLNK|0o777, "/bin/busybox", ""); err != nil {
		t.Fatal(err)
	}
	if err := put("/x", unix.S_IFMT, "/bin", ""); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a hard link to a directory: %v", err)
	}
	if err := put("/x", unix.S_IFMT, "/bin/sh", ""); err == nil {
		t.Error("a hard link follows a symbolic one")
	}
	if err := put("/x", unix.S_IFMT, "/none", ""); !os.IsNotExist(err) {
		t.Errorf("a hard link to nothing: %v", err)
	}
}

// A file that replaces is a new one, whatever has its name: what that links to, and what a reader has open, stays.
// A try that failed leaves nothing, and an older one that was cut short is no obstacle.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	root, err := inroot.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	at := func(name string) string { return filepath.Join(dir, "run/signs", name) }
	put := func(name string, change func(*agentv1.File)) error {
		f := &agentv1.File{Path: "/run/signs/" + name, Mode: unix.S_IFREG | 0o644, Data: []byte("new"), Replace: true,
			Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}
		if change != nil {
			change(f)
		}
		_, err := copyFile(root, f)
		return err
	}
	holds := func(name, want string) {
		t.Helper()
		if got, err := os.ReadFile(at(name)); err != nil || string(got) != want {
			t.Errorf("%s holds %q (%v), not %q", name, got, err, want)
		}
	}
	if err := put("a", nil); err != nil { // also makes its directory
		t.Fatal(err)
	}
	holds("a", "new")
	if fi, err := os.Stat(at("a")); err != nil || fi.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v", fi, err)
	}
	for _, err := range []error{
		os.WriteFile(at("old"), []byte("old"), 0o600), os.WriteFile(at("other"), []byte("other"), 0o600),
		os.Symlink("other", at("link")), os.Symlink("other", at(".link.new")), os.Mkdir(at("dir"), 0o700),
		unix.Mkfifo(at("fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	reader, err := os.Open(at("old"))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for _, name := range []string{"old", "link", "fifo"} {
		if err := put(name, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		holds(name, "new")
	}
	holds("other", "other")
	was := make([]byte, 3)
	if _, err := reader.Read(was); err != nil || string(was) != "old" {
		t.Errorf("who had the file open reads %q, %v", was, err)
	}
	if err := put("dir", nil); err == nil {
		t.Error("a directory was replaced")
	}
	if err := put("x", func(f *agentv1.File) { f.Append = true }); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a part of a file: %v", err)
	}
	left, err := filepath.Glob(at(".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}
