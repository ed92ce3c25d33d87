package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A file is replaced whole, with the mode asked for, and nothing else stays in its directory.
func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, content := range []string{"old", "new and longer"} {
		if err := WriteFile(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("read %q, %v, want %q", got, err, content)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v, want 0640", info.Mode(), err)
	}
	only(t, path, "file")
}

// Where the name cannot be given, the place is as it was and what was staged is gone.
func TestWriteFileIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("new"), 0o600); err == nil || errors.Is(err, ErrUnsynced) {
		t.Errorf("WriteFile over a directory: %v, want an error that is not ErrUnsynced", err)
	}
	only(t, path, "file")
	if err := WriteFile(filepath.Join(path, "no", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("WriteFile without a directory: %v, want %v", err, fs.ErrNotExist)
	}
}

// A name that could not be made durable is told apart, and keeps the disk's reason.
func TestUnsynced(t *testing.T) {
	real := SyncDir
	t.Cleanup(func() { SyncDir = real })
	SyncDir = func(dir string) error { return &os.PathError{Op: "sync", Path: dir, Err: syscall.ENOSPC} }
	path := filepath.Join(t.TempDir(), "file")
	err := WriteFile(path, []byte("new"), 0o600)
	if !errors.Is(err, ErrUnsynced) || !IsFull(err) {
		t.Errorf("WriteFile: %v, want %v of a full disk", err, ErrUnsynced)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "new" {
		t.Errorf("read %q, %v, want the new content", got, err)
	}
}

func only(t *testing.T, path, name string) {
	t.Helper()
	all, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(all) != 1 || all[0].Name() != name {
		t.Errorf("directory has %v, %v, want %s alone", all, err, name)
	}
}
