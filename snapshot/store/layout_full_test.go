package store_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/store"
)

// A directory on a full disk takes nothing and says what to do. What it has stays whole, and no part of what it
// refused lies there.
func TestLayoutOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("full", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	l, err := store.NewLayout(filepath.Join(dir, "u"))
	if err != nil {
		t.Fatal(err)
	}
	put := func(size int) (digest.Digest, error) {
		data := bytes.Repeat([]byte("x"), size)
		d := digest.FromBytes(data)
		return d, l.Put(t.Context(), store.Blob(d), store.Bytes(data, d))
	}
	kept, err := put(1000)
	if err != nil {
		t.Fatal(err)
	}
	lost, err := put(2 << 20)
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "make room") ||
		!strings.Contains(err.Error(), "state_dir") {
		t.Errorf("2 MiB on a disk of 1 MiB: %v", err)
	}
	if info, err := l.Stat(t.Context(), store.Blob(kept)); err != nil || info.Size != 1000 {
		t.Errorf("what it had: %+v, %v", info, err)
	}
	if _, err := l.Stat(t.Context(), store.Blob(lost)); !errdefs.IsNotFound(err) {
		t.Errorf("what it refused: %v", err)
	}
	if _, err := put(500_000); err != nil {
		t.Errorf("the refused bytes still take room: %v", err)
	}
}
