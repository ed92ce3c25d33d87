package snapshot

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// Two pushes to one tag at once: both snapshots are whole under their digests, the tag
// names one of them, and to drop the other leaves it there.
func TestTwoPushesToOneTag(t *testing.T) {
	w, other := newWorld(t, 1), newWorld(t, 2)
	st := opened(t, storetest.Start(t, &storetest.Registry{}))
	receipts := make([]Receipt, 2)
	var wg sync.WaitGroup
	for i, w := range []*world{w, other} {
		wg.Go(func() {
			var err error
			if receipts[i], err = Push(t.Context(), st, w.src, w.opts); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	info, err := st.Stat(t.Context(), store.Manifest(receipts[0].Tag))
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range receipts {
		s, err := Open(t.Context(), st, r.Digest, nil)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := s.Verify(t.Context(), VerifyOptions{}); err != nil || len(v.Bad) != 0 {
			t.Errorf("%+v, %v", v, err)
		}
		if r.Digest != info.Digest {
			if err := Drop(t.Context(), st, r.Digest, r.Tag, "uid1"); err != nil {
				t.Error(err)
			}
			if ok, err := Exists(t.Context(), st, receipts[1-i].Digest); !ok || err != nil {
				t.Errorf("the one that the tag names: %v, %v", ok, err)
			}
		}
	}
}

// A tag that is moved, or deleted, in the middle of a pull changes nothing: a snapshot is
// its digest.
func TestTagMovesDuringAPull(t *testing.T) {
	w := newWorld(t, 1)
	receipt, s := w.stored(t)
	w.opts.Ref.Attempt++
	if _, err := Push(t.Context(), w.st, w.src, w.opts); err != nil {
		t.Fatal(err)
	}
	if err := w.st.Delete(t.Context(), receipt.Tag); err != nil {
		t.Fatal(err)
	}
	if v, err := s.Verify(t.Context(), VerifyOptions{}); err != nil || len(v.Bad) != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	w.opts.Ref.Attempt-- // restore asks for the first
	w.restore(t, receipt.Digest)
}

// Packs that changed places are found, in the store and in the manifest.
func TestPacksSwapped(t *testing.T) {
	w := newWorld(t, 12)
	noise := randomBytes(rand.New(rand.NewPCG(3, 3)), 34<<20)
	w.src.Spaces[0].File, w.opts.Spec.Memory = blobFile(t, "ram", noise), uint64(len(noise))
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	m := w.manifest(t, receipt.Digest)
	m.Layers[2], m.Layers[3] = m.Layers[3], m.Layers[2]
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	c := store.Bytes(data, digest.FromBytes(data))
	if err := w.st.Put(t.Context(), store.Manifest(c.Digest.String()), c); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), w.st, c.Digest, nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("swapped in the manifest: %v", err)
	}
	a, b := w.blob(m.Layers[2].Digest), w.blob(m.Layers[3].Digest)
	for _, r := range [][2]string{{a, a + "x"}, {b, a}, {a + "x", b}} {
		if err := os.Rename(r[0], r[1]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.restoreAll(t, receipt.Digest); !errdefs.IsDataLoss(err) {
		t.Errorf("swapped in the store: %v", err)
	}
}

// A manifest with 10,000 layers that are not in its index is refused before one of them is fetched. A manifest that
// is longer than registries take is not read.
func TestManifestOfManyLayers(t *testing.T) {
	w := newWorld(t, 1)
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	for n, text := range map[int]string{10_000: "packs", 20_000: "layers", 40_000: "bytes"} {
		changed := w.alter(t, receipt.Digest, func(m *v1.Manifest, _ map[string]any, _ *format.Index) {
			for i := range n {
				m.Layers = append(m.Layers, v1.Descriptor{MediaType: MediaTypePack, Digest: digest.FromString(fmt.Sprint(i)),
					Size: 1})
			}
		})
		f := &faulty{Store: w.st}
		if _, err := Open(t.Context(), f, changed, nil); !errdefs.IsInvalidArgument(err) ||
			!strings.Contains(err.Error(), text) {
			t.Errorf("%d layers: %v", n, err)
		}
		if f.calls > 3 {
			t.Errorf("%d layers: %d calls", n, f.calls)
		}
	}
}

// A registry that is full at any request of a push ends it with ResourceExhausted, at
// once, and there is no snapshot.
func TestRegistryFull(t *testing.T) {
	w := newWorld(t, 1)
	whole := storetest.Start(t, &storetest.Registry{})
	if _, err := Push(t.Context(), opened(t, whole), w.src, w.opts); err != nil {
		t.Fatal(err)
	}
	for n, q := range whole.Take() {
		if q.Method != http.MethodPut && q.Method != http.MethodPost {
			continue
		}
		r := storetest.Start(t, &storetest.Registry{Script: func(i int, q *http.Request) storetest.Fault {
			if i >= n+1 && (q.Method == http.MethodPut || q.Method == http.MethodPost) {
				return storetest.Fault{Status: http.StatusInsufficientStorage}
			}
			return storetest.Fault{}
		}})
		st := opened(t, r)
		if _, err := Push(t.Context(), st, w.src, w.opts); !errdefs.IsResourceExhausted(err) {
			t.Errorf("full from request %d on: %v", n+1, err)
		}
		r.Play(nil)
		if list, err := List(t.Context(), st); err != nil || len(list) != 0 {
			t.Errorf("full from request %d on: %v, %v", n+1, list, err)
		}
	}
}

// A parent that is deleted and collected in the middle of a push costs that push, whose error says to try again.
// The next push stores what it needs itself.
func TestParentDeletedDuringAPush(t *testing.T) {
	w := newWorld(t, 12)
	first, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	r := w.restore(t, first.Digest)
	w.src.Spaces[0].File, w.src.Spaces[1].File = r.ram, r.disk
	w.opts.Ref.Operation = "op2"
	parent := func() *Table {
		table, err := OpenTable(r.table)
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	w.opts.Parent = parent()
	var index atomic.Int32
	gone := &hooked{Store: w.st, before: func(o store.Object) {
		if index.Add(1) != 2 || o.Manifest { // after the state, before index and config
			return
		}
		if err := Drop(t.Context(), w.st, first.Digest, first.Tag, "uid1"); err != nil {
			t.Error(err)
		}
		for _, p := range r.snap.index.Packs {
			if err := os.Remove(w.blob(packDescriptor(p).Digest)); err != nil {
				t.Error(err)
			}
		}
	}}
	if _, err := Push(t.Context(), gone, w.src, w.opts); !errdefs.IsAborted(err) {
		t.Errorf("the parent's packs went: %v", err)
	}
	w.opts.Parent = parent()
	second, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	w.restore(t, second.Digest)
}
