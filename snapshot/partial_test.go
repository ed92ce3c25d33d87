package snapshot

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// sparseUse is a snapshot that needs a few pages of packs of the one before it, and the
// RAM that it restores to.
func sparseUse(t *testing.T, st store.Store) (*Snapshot, [32]byte) {
	t.Helper()
	w := newWorld(t, 12)
	w.st = st
	ram := randomBytes(rand.New(rand.NewPCG(3, 3)), 18<<20)
	w.src.Spaces[0].File, w.opts.Spec.Memory = blobFile(t, "ram", ram), uint64(len(ram))
	first, err := Push(t.Context(), st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	r := w.restore(t, first.Digest)
	fresh := randomBytes(rand.New(rand.NewPCG(4, 4)), len(ram))
	for page := 0; page < len(ram); page += format.PageSize {
		if page>>20 == 2 || page>>20 == 9 { // two MiB stay as they were
			copy(fresh[page:page+format.PageSize], ram[page:])
		}
	}
	if _, err := r.ram.WriteAt(fresh, 0); err != nil {
		t.Fatal(err)
	}
	w.src.Spaces[0].File, w.src.Spaces[1].File, w.opts.Ref.Operation = r.ram, r.disk, "op2"
	if w.opts.Parent, err = OpenTable(r.table); err != nil {
		t.Fatal(err)
	}
	second, err := Push(t.Context(), st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), st, second.Digest, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s, sumFile(t, r.ram)
}

// Of a pack that is mostly of an older snapshot a restore fetches what it needs, where the registry honours Range.
// Where the registry does not, or sends something else, it fetches the whole pack. The guest gets the same bytes.
func TestFillReadsParts(t *testing.T) {
	r := storetest.Start(t, &storetest.Registry{})
	s, want := sparseUse(t, opened(t, r))
	fill := func(name string) (parts map[string]int64, wholes int) {
		t.Helper()
		r.Take()
		parts = map[string]int64{}
		ram, err := os.Create(filepath.Join(t.TempDir(), "ram"))
		if err != nil {
			t.Fatal(err)
		}
		defer ram.Close()
		st := opened(t, r) // which does not know yet whether there are ranges
		again, err := Open(t.Context(), st, s.Digest, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Fill(t.Context(), map[string]*os.File{"ram0": ram}, FillOptions{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if sumFile(t, ram) != want {
			t.Errorf("%s: other bytes", name)
		}
		for _, q := range r.Take() {
			pack := strings.Contains(q.Path, "/blobs/") && q.Method == http.MethodGet
			switch {
			case pack && q.Header.Get("Range") != "":
				parts[q.Path]++
			case pack:
				wholes++
			}
		}
		return parts, wholes
	}
	parts, wholes := fill("ranges")
	if len(parts) == 0 {
		t.Errorf("nothing was read in parts: %d packs, %d whole blobs", len(s.index.Packs), wholes)
	}
	r.Play(func(_ int, q *http.Request) storetest.Fault {
		var from, to int
		if _, err := fmt.Sscanf(q.Header.Get("Range"), "bytes=%d-%d", &from, &to); err != nil {
			return storetest.Fault{}
		}
		return storetest.Fault{
			Status: http.StatusPartialContent, Body: strings.Repeat("x", to-from+1),
			Header: http.Header{"Content-Range": {fmt.Sprintf("bytes %d-%d/*", from, to)}},
		}
	})
	if _, n := fill("other bytes"); n != wholes+len(parts) {
		t.Errorf("other bytes: %d whole blobs", n)
	}
	r.Change(func() { r.Script, r.NoRange = nil, true })
	if _, n := fill("no ranges"); n != wholes+len(parts) {
		t.Errorf("no ranges: %d whole blobs", n)
	}
}
