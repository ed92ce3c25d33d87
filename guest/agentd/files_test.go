package agentd

import (
	"errors"
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

// What is no regular file is not written to: a container may have put a device or fifo there. A file takes its place.
func TestCopyOpensNoDevice(t *testing.T) {
	dir := t.TempDir()
	root, err := inroot.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	etc := filepath.Join(dir, "etc")
	null := int(unix.Mkdev(1, 3))
	for _, err := range []error{
		os.Mkdir(etc, 0o755), unix.Mkfifo(filepath.Join(etc, "fifo"), 0o600),
		unix.Mknod(filepath.Join(etc, "device"), unix.S_IFCHR|0o600, null),
		unix.Mknod(filepath.Join(etc, "socket"), unix.S_IFSOCK|0o600, 0),
		unix.Mknod(filepath.Join(dir, "behind"), unix.S_IFCHR|0o600, null),
		os.Symlink("/behind", filepath.Join(etc, "link")),
		os.Symlink("/none/x", filepath.Join(etc, "dangling")),
		os.Symlink("../etc/made", filepath.Join(etc, "ready")),
	} {
		if errors.Is(err, os.ErrPermission) {
			t.Skip("needs root")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"fifo", "device", "socket", "link", "dangling", "ready", "new"} {
		for _, text := range []string{"longer than the next", "text"} {
			f := &agentv1.File{Path: "/etc/" + name, Mode: unix.S_IFREG | 0o644, Data: []byte(text), Keep: true}
			kept, err := copyFile(root, f)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			kept.Close()
			fi, err := os.Stat(filepath.Join(etc, name))
			if err != nil || !fi.Mode().IsRegular() {
				t.Errorf("%s: it is %v, %v", name, fi, err)
				continue
			}
			if got, err := os.ReadFile(filepath.Join(etc, name)); string(got) != text {
				t.Errorf("%s holds %q, %v", name, got, err)
			}
		}
	}
	if fi, err := os.Lstat(filepath.Join(etc, "ready")); err != nil || fi.Mode().Type() != os.ModeSymlink {
		t.Errorf("a link to a file that can be made: %v, %v", fi, err)
	}
	if fi, err := os.Lstat(filepath.Join(dir, "behind")); err != nil || fi.Mode().IsRegular() {
		t.Errorf("a device that a link leads to: %v, %v", fi, err)
	}
	hard := &agentv1.File{Path: "/etc/hard", Mode: unix.S_IFMT, Link: "/behind"}
	if _, err := copyFile(root, hard); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a hard link to a device: %v", err)
	}
}
