package bpf

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/loopdevice"
)

// From linux/fs.h: _IOWR('X', 119, int) and the next one.
const (
	freeze = 0xc0045877
	thaw   = 0xc0045878
)

// A file system that is frozen holds NoteFile up no longer than its context. Once it goes on, there are notes.
func TestNoteFileOnAFrozenFileSystem(t *testing.T) {
	newDisk(t) // skips where no notes are
	const wait = 200 * time.Millisecond
	device, at := loopdevice.New(t, 64<<20), t.TempDir()
	if out, err := exec.Command("mkfs.ext4", "-q", device).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := unix.Mount(device, at, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	f, err := os.Create(filepath.Join(at, "disk"))
	if err == nil {
		err = f.Truncate(1 << 20)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	root, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := unix.IoctlSetInt(int(root.Fd()), freeze, 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	done := make(chan error, 1)
	go func() { _, err := NoteFile(ctx, f, 1); done <- err }()
	select {
	case err = <-done:
	case <-time.After(50 * wait):
		err = errors.New("it waits for the file system")
	}
	if err := unix.IoctlSetInt(int(root.Fd()), thaw, 0); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("frozen: %v", err)
	}
	n, err := NoteFile(t.Context(), f, 1)
	if err != nil {
		t.Fatalf("after that: %v", err)
	}
	n.Close()
}
