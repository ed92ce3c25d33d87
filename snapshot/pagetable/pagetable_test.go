package pagetable

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/seal"
)

func file(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "table"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// What a writer has been given a reader finds: pages by their sum, and proved by their hash. Until it
// is closed there is no table, and one that is cut anywhere is refused.
func TestReadsWhatWasWritten(t *testing.T) {
	index, err := (&format.Index{
		Packs:  []format.Pack{{SHA256: [32]byte{1}, Size: format.PageSize}},
		Frames: []format.Frame{{Stored: format.PageSize, Pages: 1, Codec: format.Raw}},
		Spaces: []format.Space{{Name: "ram0", Size: 2 * format.PageSize, Runs: []format.Run{{Page: 1, Count: 1}}}},
	}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	f := file(t)
	key := seal.NewKey()
	w, err := NewWriter(f, "layout:/somewhere", index, []*seal.Key{key})
	if err != nil {
		t.Fatal(err)
	}
	page, other := bytes.Repeat([]byte{7}, format.PageSize), bytes.Repeat([]byte{8}, format.PageSize)
	if err := w.Append(w.Entry(NewHasher(w.Key()), page, 0, 0).Append(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(f); !errdefs.IsNotFound(err) || Whole(f) != 0 {
		t.Errorf("an unfinished table: %v, whole %d", err, Whole(f))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	if got.Repository != "layout:/somewhere" || len(got.Entries) != 1 || got.Packs[0].Secret != key.Secret() ||
		got.Index.Packs[0].SHA256 != [32]byte{1} {
		t.Errorf("read %+v", got)
	}
	sums := NewSums(1)
	sums.Add(got.Entries, 0)
	h := NewHasher(got.Key)
	want := NewEntry(page, got.Seed, h)
	if e := sums.Find(got.Entries, want.Sum); e == nil || e.Hash != h.Sum(page) || e.Hash == h.Sum(other) || !e.Proved() {
		t.Errorf("found %+v", e)
	}
	whole := Whole(f)
	for cut := range whole {
		if err := f.Truncate(whole - 1 - cut); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(f); err == nil {
			t.Fatalf("a table of %d of %d bytes is read", whole-1-cut, whole)
		}
	}
}
