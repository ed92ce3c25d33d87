package inroot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Only a regular file is opened. What else has the name has no effect, and is not waited for.
func TestOpenRegular(t *testing.T) {
	dir, r := tree(t)
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600), os.Symlink("/file", filepath.Join(dir, "link")),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600), os.Symlink("fifo", filepath.Join(dir, "to-fifo")),
		unix.Mknod(filepath.Join(dir, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))),
	} {
		if errors.Is(err, os.ErrPermission) {
			t.Skip("needs root")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		path  string
		flags int
		want  error
	}{
		{"/file", 0, nil}, {"/link", 0, nil}, {"/link", unix.O_NOFOLLOW, ErrNotRegular}, {"/fifo", 0, ErrNotRegular},
		{"/to-fifo", 0, ErrNotRegular}, {"/device", 0, ErrNotRegular}, {"/in", 0, ErrNotRegular},
		{"/none", 0, os.ErrNotExist},
	} {
		f, err := r.OpenRegular(c.path, unix.O_WRONLY|c.flags)
		if !errors.Is(err, c.want) || (err == nil) != (f != nil) {
			t.Errorf("%s: %v, not %v", c.path, err, c.want)
		}
		if f != nil {
			f.Close()
		}
	}
}

// A file is made where links lead to, and never in the place of something.
func TestCreate(t *testing.T) {
	dir, r := tree(t)
	if err := os.Symlink("in/made", filepath.Join(dir, "ready")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		"/new": nil, "/ready": nil, "/in": os.ErrExist, "/dangling": os.ErrNotExist, "/loop": unix.ELOOP,
		"/up": os.ErrExist,
	} {
		f, err := r.Create(path, 0o600)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, not %v", path, err, want)
		}
		if f != nil {
			f.Close()
		}
	}
	for _, name := range []string{"new", "in/made"} {
		if fi, err := os.Lstat(filepath.Join(dir, name)); err != nil || !fi.Mode().IsRegular() {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
}

// A lease on a file, which its holder does not give up, is waited for a moment alone.
func TestLeaseIsNotWaitedFor(t *testing.T) {
	dir, r := tree(t)
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		f, err := r.OpenFile("/file", unix.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			f.Close()
		}
		failed <- err
	}()
	select {
	case err := <-failed:
		if !errors.Is(err, unix.EAGAIN) {
			t.Error(err)
		}
	case <-time.After(20 * time.Second): // lease-break-time is 45 s
		t.Error("it is waited for")
	}
}
