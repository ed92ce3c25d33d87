package agentd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// chain makes directories one in the other, and a file in the last.
func chain(t *testing.T, dir string, depth int) {
	t.Helper()
	at, err := openDir(unix.AT_FDCWD, dir)
	for i := 0; i < depth && err == nil; i++ {
		if err = unix.Mkdirat(int(at.Fd()), "d", 0o755); err == nil {
			var next *os.File
			next, err = openDir(int(at.Fd()), "d")
			at.Close()
			at = next
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	fd, err := unix.Openat(int(at.Fd()), "file", unix.O_CREAT|unix.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
}

// What a container has left goes, however deep its directories are: the agent has few descriptors. No link is followed.
func TestRemoveDeepTree(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	outside, dir := t.TempDir(), filepath.Join(t.TempDir(), "tree")
	keep := filepath.Join(outside, "keep")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "a/b"), 0o755), os.WriteFile(keep, nil, 0o600),
		os.Symlink(outside, filepath.Join(dir, "a/link")), os.WriteFile(filepath.Join(dir, "a/b/.gone0"), nil, 0o600),
		os.Mkdir(filepath.Join(dir, ".gone0"), 0o755), os.WriteFile(filepath.Join(dir, ".gone0/x"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	chain(t, filepath.Join(dir, "a/b"), 1000)
	less := was
	less.Cur = 200
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &less); err != nil {
		t.Fatal(err)
	}
	err := removeTree(dir)
	if e := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); e != nil {
		t.Fatal(e)
	}
	if err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
	if _, err := os.Stat(keep); err != nil {
		t.Error(err)
	}
	for _, none := range []string{dir, keep} {
		if err := removeTree(none); err != nil {
			t.Errorf("%s: %v", none, err)
		}
	}
	if _, err := os.Lstat(keep); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file is there: %v", err)
	}
}

// An immutable file or directory, which a privileged container makes, goes too.
func TestRemoveImmutable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	sub := filepath.Join(dir, "sub")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(sub, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, sub} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flagImmutable)
		f.Close()
		if err != nil {
			t.Skipf("the file system has no immutable files, or this is not root: %v", err)
		}
	}
	if err := removeTree(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
}
