//go:build integration

package snapshot

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"godwit.dev/godwit/snapshot/format"
)

// A reader written from docs/dev/protocols/snapshot-format.md alone restores what Push stored.
func TestIndependentReader(t *testing.T) {
	for _, codec := range []format.Codec{format.MinLZ, format.S2, format.Zstd} {
		w := newWorld(t, 11)
		small(t, w)
		w.opts.Codec = codec
		receipt, err := Push(t.Context(), w.st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		out := t.TempDir()
		cmd := exec.Command("/usr/bin/python3", "testdata/reader.py", w.dir, receipt.Digest.String(), out)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("reader: %v: %s", err, text)
		}
		for name, f := range map[string]*os.File{
			"ram0": w.src.Spaces[0].File, "disk0": w.src.Spaces[1].File, "state": w.src.State,
			"disk-layer0": w.src.Disks[0].File,
		} {
			got, err := os.Open(filepath.Join(out, name))
			if err != nil {
				t.Fatal(err)
			}
			if sumFile(t, got) != sumFile(t, f) {
				t.Errorf("codec %d: reader's %s differs", codec, name)
			}
			got.Close()
		}
	}
}

// small makes a world that a hash in Python can follow.
func small(t *testing.T, w *world) {
	t.Helper()
	w.src.Spaces[0].File = sparse(t, rand.New(rand.NewPCG(5, 5)), "ram", 3<<20)
	w.opts.Spec.Memory = 3 << 20
	w.src.Spaces[1].File = sparse(t, rand.New(rand.NewPCG(5, 6)), "rw", 1<<20+512)
}
