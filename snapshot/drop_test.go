package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

func opened(t *testing.T, r *storetest.Registry) store.Store {
	t.Helper()
	st, err := store.Open(r.Config(t, "godwit/uid1"))
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// A snapshot is deleted by its digest; its tag goes if it is still its tag, and another's
// is left alone. What is gone is deleted.
func TestDrop(t *testing.T) {
	for name, st := range map[string]store.Store{
		"registry": opened(t, storetest.Start(t, &storetest.Registry{})),
		"layout":   layout(t, filepath.Join(t.TempDir(), "l")),
	} {
		w := newWorld(t, 1)
		w.opts.Tag = "g3-op1"
		first, err := Push(t.Context(), st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		w.opts.Ref.Attempt++ // the next attempt moves the tag
		second, err := Push(t.Context(), st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		exists := func(d digest.Digest) bool {
			ok, err := Exists(t.Context(), st, d)
			if err != nil {
				t.Fatal(err)
			}
			return ok
		}
		tags := func() []string {
			list, err := st.Tags(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return slices.DeleteFunc(list, func(s string) bool { return s == "" || digest.Digest(s).Validate() == nil })
		}
		for range 2 {
			if err := Drop(t.Context(), st, first.Digest, first.Tag, "uid1"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got := tags(); len(got) != 1 || !exists(second.Digest) {
			t.Errorf("%s: the tag was moved and is gone with the snapshot before: %v", name, got)
		}
		for range 2 {
			if err := Drop(t.Context(), st, second.Digest, second.Tag, "uid1"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got := tags(); len(got) != 0 {
			t.Errorf("%s: tags %v", name, got)
		}
	}
}

// A store that refuses deletes says so with one of the classes that Refused knows, and keeps the snapshot. Anything
// else that goes wrong is not a refusal.
func TestDropIsRefused(t *testing.T) {
	for status, refused := range map[int]bool{403: true, 405: true, 400: true, 401: true, 500: false} {
		r := storetest.Start(t, &storetest.Registry{NoDelete: status})
		st := store.Store(opened(t, r))
		if status == 500 {
			st, _ = store.NewRegistry(r.Config(t, "godwit/uid1")) // without retries
		}
		w := newWorld(t, 1)
		receipt, err := Push(t.Context(), st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		if err := Drop(t.Context(), st, receipt.Digest, receipt.Tag, "uid1"); err == nil || Refused(err) != refused {
			t.Errorf("%d: %v, refused %v", status, err, Refused(err))
		}
		if ok, err := Exists(t.Context(), st, receipt.Digest); !ok || err != nil {
			t.Errorf("%d: the snapshot: %v, %v", status, ok, err)
		}
		r.Take()
		got := Probe(t.Context(), st, "n1")
		if got.Push != nil || got.Pull != nil || Refused(got.Delete) != refused {
			t.Errorf("%d: rights %+v", status, got)
		}
	}
}

// Each right is found missing by itself, and a probe of a store that grants all leaves
// nothing.
func TestProbe(t *testing.T) {
	at := layout(t, filepath.Join(t.TempDir(), "l"))
	if r := Probe(t.Context(), at, "n1"); r.Err() != nil {
		t.Error(r.Err())
	}
	if tags, err := at.Tags(t.Context()); err != nil || len(tags) != 0 {
		t.Errorf("left: %v, %v", tags, err)
	}
	for n, want := range []string{"push", "push", "pull", "delete"} {
		r := Probe(t.Context(), &faulty{Store: at, fail: n + 1, err: errdefs.ErrPermissionDenied}, "n1")
		got := map[string]error{"push": r.Push, "pull": r.Pull, "delete": r.Delete}[want]
		if !errdefs.IsPermissionDenied(got) || want != "push" && r.Push != nil {
			t.Errorf("call %d: %+v, want %s to be refused", n+1, r, want)
		}
	}
}

// Whichever call of a deletion fails, it says so, and done again it is done.
func TestDropFailsAtEachCall(t *testing.T) {
	w := newWorld(t, 1)
	for n := 1; ; n++ {
		receipt, err := Push(t.Context(), w.st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		f := &faulty{Store: w.st, fail: n, err: errdefs.ErrUnavailable}
		err = Drop(t.Context(), f, receipt.Digest, receipt.Tag, "uid1")
		if n > f.calls {
			if err != nil || n < 3 {
				t.Fatalf("%d calls, %v", f.calls, err)
			}
			return
		}
		if !errdefs.IsUnavailable(err) {
			t.Errorf("call %d fails: %v", n, err)
		}
		if err := Drop(t.Context(), w.st, receipt.Digest, receipt.Tag, "uid1"); err != nil {
			t.Errorf("after call %d failed: %v", n, err)
		}
		if tags, err := w.st.Tags(t.Context()); err != nil || len(tags) != 0 {
			t.Errorf("after call %d failed: %v, %v", n, tags, err)
		}
	}
}

// A hold lists what it is told, moves with its tag, is no snapshot, and goes.
func TestHold(t *testing.T) {
	w := newWorld(t, 1)
	var packs []v1.Descriptor
	h := NewHold(w.st, w.opts.Ref)
	for i := range 3 {
		data := fmt.Append(nil, "pack", i)
		c := store.Bytes(data, digest.FromBytes(data))
		if err := w.st.Put(t.Context(), store.Blob(c.Digest), c); err != nil {
			t.Fatal(err)
		}
		packs = append(packs, v1.Descriptor{MediaType: MediaTypePack, Digest: c.Digest, Size: c.Size})
		if err := h.Keep(t.Context(), packs); err != nil {
			t.Fatal(err)
		}
	}
	list, err := List(t.Context(), w.st)
	if err != nil || len(list) != 1 || !list[0].Hold || list[0].Tag != "p3-op1" || list[0].Ref != w.opts.Ref ||
		list[0].Size != 15 || list[0].Err != nil {
		t.Fatalf("list %+v, %v", list, err)
	}
	if _, err := Open(t.Context(), w.st, list[0].Digest, nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a hold opened as a snapshot: %v", err)
	}
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := h.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if list, err = List(t.Context(), w.st); err != nil || len(list) != 1 || list[0].Digest != receipt.Digest {
		t.Errorf("after the release: %+v, %v", list, err)
	}
	lost := []v1.Descriptor{{MediaType: MediaTypePack, Digest: digest.FromString("none"), Size: 4}}
	if err := h.Keep(t.Context(), lost); !errdefs.IsAborted(err) {
		t.Errorf("hold of a pack that is not there: %v", err)
	}
	for n := 1; n <= 2; n++ {
		if err := h.Keep(t.Context(), packs); err != nil {
			t.Fatal(err)
		}
		f := NewHold(&faulty{Store: w.st, fail: n, err: errdefs.ErrUnavailable}, w.opts.Ref)
		if err := f.Keep(t.Context(), packs); !errdefs.IsUnavailable(err) {
			t.Errorf("call %d fails: %v", n, err)
		}
	}
}

// Collect removes what no index lists once it is old enough, also what killed writers left, and spares everything
// else. A push that has lost a blob to it is Aborted at its manifest.
func TestCollect(t *testing.T) {
	w := newWorld(t, 1)
	kept, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	l := w.st.(*store.Layout)
	blobs := filepath.Join(w.dir, "blobs", "sha256")
	put := func(text string) string {
		c := store.Bytes([]byte(text), digest.FromString(text))
		if err := l.Put(t.Context(), store.Blob(c.Digest), c); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(blobs, c.Digest.Encoded())
	}
	old, young := put("old"), put("young")
	staged, foreign := old+".77-1.tmp", filepath.Join(blobs, "README")
	for _, path := range []string{staged, foreign} {
		if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-2 * time.Hour)
	entries, err := os.ReadDir(blobs)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if path := filepath.Join(blobs, e.Name()); path != young {
			if err := os.Chtimes(path, past, past); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, dry := range []bool{true, false} {
		if c, err := l.Collect(t.Context(), time.Hour, dry); err != nil || c.Files != 2 || c.Bytes != 8 {
			t.Errorf("dry %v: %+v, %v", dry, c, err)
		}
		if _, err := os.Stat(old); errors.Is(err, os.ErrNotExist) == dry {
			t.Errorf("dry %v: %v", dry, err)
		}
	}
	for _, path := range []string{young, foreign} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	s, err := Open(t.Context(), w.st, kept.Digest, nil)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := s.Verify(t.Context(), VerifyOptions{}); err != nil || len(v.Bad) != 0 {
		t.Errorf("the snapshot that is kept: %+v, %v", v, err)
	}
	if err := Drop(t.Context(), w.st, kept.Digest, kept.Tag, "uid1"); err != nil {
		t.Fatal(err)
	}
	sweeping := &hooked{Store: w.st, before: func(o store.Object) {
		if o.Manifest {
			if _, err := l.Collect(t.Context(), 0, false); err != nil {
				t.Error(err)
			}
		}
	}}
	if _, err := Push(t.Context(), sweeping, w.src, w.opts); !errdefs.IsAborted(err) {
		t.Errorf("a push whose blobs were collected: %v", err)
	}
	if tags, err := w.st.Tags(t.Context()); err != nil || len(tags) != 0 {
		t.Errorf("tags %v, %v", tags, err)
	}
}

// Collect knows what another program's index of images keeps, and where it cannot know
// that, removes nothing.
func TestCollectSparesOthers(t *testing.T) {
	for _, tt := range []struct {
		name, manifest string
		fails, gone    bool
	}{
		{"an index", `{"manifests":[{"digest":"%s"}]}`, false, false},
		{"a manifest of nothing", `{"schemaVersion":2}`, false, true},
		{"a digest that is none", `{"layers":[{"digest":"x"}]}`, true, false},
		{"a child that is away", `{"manifests":[{"digest":"` + digest.FromString("away").String() + `"}]}`, true, false},
	} {
		w := newWorld(t, 2)
		put := func(text string) digest.Digest {
			d := digest.FromString(text)
			if err := w.st.Put(t.Context(), store.Blob(d), store.Bytes([]byte(text), d)); err != nil {
				t.Fatal(err)
			}
			return d
		}
		layer := put("layer")
		child := put(fmt.Sprintf(`{"layers":[{"digest":%q}]}`, layer))
		d := put(strings.ReplaceAll(tt.manifest, "%s", child.String()))
		index := fmt.Sprintf(`{"manifests":[{"digest":%q}]}`, d)
		if err := os.WriteFile(filepath.Join(w.dir, "index.json"), []byte(index), 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := w.st.(*store.Layout).Collect(t.Context(), 0, false); (err != nil) != tt.fails ||
			(c.Files != 0) != tt.gone {
			t.Errorf("%s: %+v, %v", tt.name, c, err)
		}
		for _, b := range []digest.Digest{layer, child} {
			if _, err := w.st.Stat(t.Context(), store.Blob(b)); errdefs.IsNotFound(err) != tt.gone {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
	}
}

// hooked calls before a Put.
type hooked struct {
	store.Store
	before func(store.Object)
}

func (h *hooked) Put(ctx context.Context, o store.Object, c store.Content) error {
	h.before(o)
	return h.Store.Put(ctx, o, c)
}

// Nodes that ask at once do not disturb each other.
func TestProbesAtOnce(t *testing.T) {
	at := layout(t, filepath.Join(t.TempDir(), "l"))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 5 {
				if err := Probe(t.Context(), at, fmt.Sprint("node", i)).Err(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
