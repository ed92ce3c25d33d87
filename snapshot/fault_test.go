package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot/store"
)

// faulty fails one call of a store.
type faulty struct {
	store.Store
	mu    sync.Mutex
	calls int
	fail  int // number of the call, from 1
	err   error
}

func (f *faulty) next(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls++; f.calls == f.fail {
		return fmt.Errorf("%s: %w", what, f.err)
	}
	return nil
}

func (f *faulty) Stat(ctx context.Context, o store.Object) (store.Info, error) {
	if err := f.next("stat"); err != nil {
		return store.Info{}, err
	}
	return f.Store.Stat(ctx, o)
}

func (f *faulty) Get(ctx context.Context, o store.Object) (io.ReadCloser, error) {
	if err := f.next("get"); err != nil {
		return nil, err
	}
	return f.Store.Get(ctx, o)
}

func (f *faulty) Put(ctx context.Context, o store.Object, c store.Content) error {
	if err := f.next("put"); err != nil {
		return err
	}
	return f.Store.Put(ctx, o, c)
}

func (f *faulty) Delete(ctx context.Context, tag string) error {
	if err := f.next("delete"); err != nil {
		return err
	}
	return f.Store.Delete(ctx, tag)
}

func (f *faulty) Tags(ctx context.Context) ([]string, error) {
	if err := f.next("tags"); err != nil {
		return nil, err
	}
	return f.Store.Tags(ctx)
}

// noLeftovers: nothing but blobs under their digest, and the layout's own files.
func noLeftovers(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		hex, blob := strings.CutPrefix(name, "blobs/sha256/")
		if blob && digest.Digest("sha256:"+hex).Validate() == nil || name == "oci-layout" || name == "index.json" ||
			name == ".lock" {
			return nil
		}
		t.Errorf("left: %s", name)
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// forgetful loses a blob once it has been stored, or says which blobs it was asked for.
type forgetful struct {
	store.Store
	lose int // the n-th blob that is put, from 1 on; 0: none

	mu    sync.Mutex
	puts  int
	lost  string
	asked map[string]bool
	wants []byte // the manifest
}

func (f *forgetful) Stat(ctx context.Context, o store.Object) (store.Info, error) {
	f.mu.Lock()
	f.asked[o.Name] = true
	gone := f.lost != "" && o.Name == f.lost
	f.mu.Unlock()
	if gone {
		return store.Info{}, errdefs.ErrNotFound
	}
	return f.Store.Stat(ctx, o)
}

func (f *forgetful) Put(ctx context.Context, o store.Object, c store.Content) error {
	f.mu.Lock()
	if o.Manifest {
		body, _ := c.Open()
		f.wants, _ = io.ReadAll(body)
	} else if f.puts++; f.puts == f.lose {
		f.lost = o.Name
	}
	f.mu.Unlock()
	return f.Store.Put(ctx, o, c)
}

// Whatever of a snapshot is lost between its upload and the commit, no manifest names it. Every blob that a
// manifest does name was asked for after its upload.
func TestCommitAsksForEveryBlob(t *testing.T) {
	for _, live := range []bool{false, true} {
		push := func(lose int) (*forgetful, error) {
			w := newWorld(t, 3)
			if live {
				g := newGuest(w, 4)
				w.opts.Live, w.opts.Budget = g, time.Second
				go g.run()
				defer func() {
					if !g.paused {
						close(g.stop)
					}
					<-g.stopped
				}()
			}
			f := &forgetful{Store: w.st, lose: lose, asked: map[string]bool{}}
			_, err := Push(t.Context(), f, w.src, w.opts)
			return f, err
		}
		all, err := push(0)
		if err != nil {
			t.Fatal(err)
		}
		var m v1.Manifest
		if err := json.Unmarshal(all.wants, &m); err != nil {
			t.Fatal(err)
		}
		for _, d := range append(m.Layers, m.Config) {
			if !all.asked[d.Digest.String()] {
				t.Errorf("live %v: not asked for %s %s", live, d.MediaType, d.Digest)
			}
		}
		for n := 1; n <= all.puts; n++ {
			f, err := push(n)
			switch { // of a VM that runs, a blob may be of no use any more
			case err == nil && live && f.lost != "" && !strings.Contains(string(f.wants), f.lost):
			case err == nil && f.lost == "":
			case !errdefs.IsAborted(err) || f.wants != nil:
				t.Errorf("live %v, blob %d of %d is lost: %v, manifest %s", live, n, all.puts, err, f.wants)
			}
		}
	}
}

// Whichever call of a push fails, the error has the store's class and no manifest is there. The last call, which
// only reads the manifest back, is the exception.
func TestPushFailsAtEachCall(t *testing.T) {
	w := newWorld(t, 1)
	dir := t.TempDir()
	count := &faulty{Store: layout(t, filepath.Join(dir, "count"))}
	if _, err := Push(t.Context(), count, w.src, w.opts); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= count.calls; n++ {
		for _, class := range []error{errdefs.ErrUnauthenticated, errdefs.ErrResourceExhausted} {
			at := filepath.Join(dir, fmt.Sprint(n, class))
			f := &faulty{Store: layout(t, at), fail: n, err: class}
			receipt, err := Push(t.Context(), f, w.src, w.opts)
			if !errors.Is(err, class) || receipt.Digest != "" {
				t.Errorf("call %d fails with %v: push answers %q, %v", n, class, receipt.Digest, err)
			}
			tags, err := f.Store.Tags(t.Context())
			if err != nil || n < count.calls && len(tags) != 0 {
				t.Errorf("call %d fails: tags %v, %v", n, tags, err)
			}
			noLeftovers(t, at)
			os.RemoveAll(at)
		}
	}
}

// R5: whichever call of a restore fails, it fails with the store's class: a
// registry that cannot answer has not said that the snapshot is gone.
func TestRestoreFailsAtEachCall(t *testing.T) {
	w := newWorld(t, 2)
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	restore := func(st store.Store) error {
		s, err := Open(t.Context(), st, receipt.Digest, nil)
		if err != nil {
			return err
		}
		ram, err := os.Create(filepath.Join(t.TempDir(), "ram"))
		if err != nil {
			t.Fatal(err)
		}
		defer ram.Close()
		if err := s.State(t.Context(), io.Discard); err != nil {
			return err
		}
		return s.Fill(t.Context(), map[string]*os.File{"ram0": ram}, FillOptions{})
	}
	count := &faulty{Store: w.st}
	if err := restore(count); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= count.calls; n++ {
		for _, class := range []error{errdefs.ErrPermissionDenied, errdefs.ErrUnavailable, errdefs.ErrNotFound} {
			err := restore(&faulty{Store: w.st, fail: n, err: class})
			want := class
			switch {
			case class == errdefs.ErrNotFound && n > 1:
				want = errdefs.ErrDataLoss // the manifest is there, its blob is not
			case class == errdefs.ErrUnavailable && n > 4:
				want = nil // a pack is asked for again
			}
			if !errors.Is(err, want) || errdefs.IsNotFound(err) != (want == errdefs.ErrNotFound) {
				t.Errorf("call %d of %d fails with %v: restore answers %v", n, count.calls, class, err)
			}
		}
	}
}

// Snapshots are listed, tagged, verified and deleted by their digest.
func TestManage(t *testing.T) {
	w := newWorld(t, 3)
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	list, err := List(t.Context(), w.st)
	if err != nil || len(list) != 1 || list[0].Ref != w.opts.Ref || list[0].Digest != receipt.Digest ||
		list[0].Tag != "g3-op1" || list[0].Size != receipt.Figures.Total || list[0].Err != nil {
		t.Errorf("list: %+v, %v", list, err)
	}
	if ok, err := Exists(t.Context(), w.st, receipt.Digest); !ok || err != nil {
		t.Errorf("exists: %v, %v", ok, err)
	}
	if ok, err := Exists(t.Context(), w.st, digest.FromString("none")); ok || err != nil {
		t.Errorf("exists of another: %v, %v", ok, err)
	}
	if ok, err := Exists(t.Context(), layout(t, filepath.Join(t.TempDir(), "unmounted")), receipt.Digest); ok ||
		!errdefs.IsUnavailable(err) {
		t.Errorf("exists in a layout that is not there: %v, %v, want Unavailable", ok, err)
	}
	if err := Accepts(t.Context(), w.st); err != nil {
		t.Errorf("a store that takes blobs: %v", err)
	}
	if err := Accepts(t.Context(),
		&faulty{Store: w.st, fail: 1, err: errdefs.ErrPermissionDenied}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a store that takes nothing: %v", err)
	}
	for range 2 { // the second time it is gone already
		if err := Drop(t.Context(), w.st, receipt.Digest, receipt.Tag, "uid1"); err != nil {
			t.Error(err)
		}
	}
	if err := Drop(t.Context(), &faulty{Store: w.st, fail: 1, err: errdefs.ErrPermissionDenied}, receipt.Digest, "t",
		"uid1"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("delete without the right: %v", err)
	}
	if list, err := List(t.Context(), w.st); err != nil || len(list) != 0 {
		t.Errorf("list after delete: %v, %v", list, err)
	}
}

func layout(t *testing.T, dir string) store.Store {
	t.Helper()
	st, err := store.NewLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	return st
}
