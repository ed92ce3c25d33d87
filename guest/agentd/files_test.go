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
