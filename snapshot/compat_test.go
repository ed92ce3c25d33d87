package snapshot

import (
	"bytes"
	"os"
	"testing"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot/store"
)

// A whole snapshot that the first build pushed into a layout is opened and filled: its
// manifest, config, index, packs, state and read-only disk. The directory never changes.
func TestSnapshotOfVersion1(t *testing.T) {
	dir := t.TempDir() // opening a layout may lock it: the tree stays as it is
	if err := os.CopyFS(dir, os.DirFS("testdata/layout-v1")); err != nil {
		t.Fatal(err)
	}
	st, err := store.NewLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := testRef()
	s, err := Open(t.Context(), st, "sha256:f0cb0b41fd5fc0efbea3faa0f497966949e8b0614d95f6747aa2dd821ca7dcbf", &want)
	if err != nil {
		t.Fatal(err)
	}
	ram, disk := emptyFile(t, "ram"), emptyFile(t, "disk")
	if err := s.Fill(t.Context(), map[string]*os.File{"ram0": ram, "disk0": disk},
		FillOptions{Table: emptyFile(t, "table")}); err != nil {
		t.Fatal(err)
	}
	var state, base bytes.Buffer
	if err := s.State(t.Context(), &state); err != nil {
		t.Fatal(err)
	}
	d := digest.FromBytes(bytes.Repeat([]byte("base"), 1024))
	if err := s.Disk(t.Context(), d, &base); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ got, want digest.Digest }{
		"ram":   {digestOf(t, ram), "sha256:416e6f0642e0b41c3530b5ef7a5018b25f5aa9022a9550a92ce7a3c2cc33c93e"},
		"disk":  {digestOf(t, disk), "sha256:fa8ba536096b77b65290b7db4d1361abf5eeac51e5c57fa398a885820ccdda3a"},
		"state": {digest.FromBytes(state.Bytes()), digest.FromBytes(bytes.Repeat([]byte("state678"), 512))},
		"base":  {digest.FromBytes(base.Bytes()), d},
	} {
		if c.got != c.want {
			t.Errorf("%s is %s, want %s", name, c.got, c.want)
		}
	}
}

func digestOf(t *testing.T, f *os.File) digest.Digest {
	t.Helper()
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return digest.FromBytes(data)
}
