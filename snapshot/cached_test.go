package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot/cache"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/sign"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// kept is a cache's part for one repository.
func kept(t *testing.T) *cache.Dir {
	t.Helper()
	lease, err := cache.Open(t.TempDir(), 1<<30).Join("registry.example/vms/uid1", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lease.Close)
	return cache.NewDir(lease.Dir, "", nil)
}

func pathOf(d *cache.Dir) string {
	path, _ := d.Paths()
	return path
}

// through restores RAM, disk and state by way of a cache, and counts what the store was
// asked for.
func (w *world) through(t *testing.T, k store.Keeper, d digest.Digest) (asked int) {
	t.Helper()
	plain := w.st
	defer func() { w.st = plain }()
	count := &faulty{Store: plain}
	w.st = store.Keeping(count, k)
	r := w.restore(t, d)
	var state bytes.Buffer
	if err := r.snap.State(t.Context(), &state); err != nil {
		t.Fatal(err)
	}
	if want, err := os.ReadFile(w.src.State.Name()); err != nil || !bytes.Equal(state.Bytes(), want) {
		t.Errorf("another device state, %v", err)
	}
	return count.calls
}

// What a node has pushed or fetched it restores without asking the store for anything, sealed and signed as it is.
// What lies there is what lies in the store.
func TestKeptSnapshotNeedsNoRequest(t *testing.T) {
	private, public := keyFiles(t, newECDSA(t))
	for name, prepare := range map[string]func(w *world){
		"plain":  func(*world) {},
		"sealed": func(w *world) { w.opts.Keys.Locks.Keys = []seal.Secret{secret(1)} },
		"signed": func(w *world) {
			w.opts.Keys.Trust = trust(t, sign.Config{KeyFile: private, Trusted: []string{public}, Required: true})
		},
	} {
		w := newWorld(t, 51)
		prepare(w)
		pushed, fetched := kept(t), kept(t)
		w.opts.Keeper = pushed
		receipt, err := Push(t.Context(), w.st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		if n := w.through(t, pushed, receipt.Digest); n != 0 {
			t.Errorf("%s: the node that pushed asked the store %d times", name, n)
		}
		if n := w.through(t, fetched, receipt.Digest); n == 0 {
			t.Errorf("%s: the store was not asked by a node that knows nothing", name)
		}
		if n := w.through(t, fetched, receipt.Digest); n != 0 {
			t.Errorf("%s: the node that fetched asked the store %d times", name, n)
		}
		w.sameAsStored(t, pathOf(pushed))
	}
}

// sameAsStored compares each blob that is kept with the layout's.
func (w *world) sameAsStored(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "sha256-*"))
	if err != nil || len(files) < 4 {
		t.Errorf("%d blobs are kept, %v", len(files), err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		stored, serr := os.ReadFile(filepath.Join(w.dir, "blobs", "sha256", filepath.Base(f)[len("sha256-"):]))
		if err != nil || serr != nil || !bytes.Equal(data, stored) {
			t.Errorf("%s is not what the store has: %v, %v", filepath.Base(f), err, serr)
		}
	}
}

// Whichever kept file is damaged, cut, empty, gone or a link to elsewhere: the VM gets its own
// bytes, that one object is fetched, and the next restore asks for nothing again.
func TestDamagedEntryIsFetched(t *testing.T) {
	w := newWorld(t, 52)
	k := kept(t)
	w.opts.Keeper = k
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	files, err := filepath.Glob(filepath.Join(pathOf(k), "*sha256-*"))
	if err != nil || len(files) < 5 { // manifest, config, index, state, pack
		t.Fatalf("%d files are kept, %v", len(files), err)
	}
	for name, damage := range map[string]func(path string, whole []byte) error{
		"first byte":  func(f string, b []byte) error { return os.WriteFile(f, append([]byte{b[0] ^ 1}, b[1:]...), 0o600) },
		"all zero":    func(f string, b []byte) error { return os.WriteFile(f, make([]byte, len(b)), 0o600) },
		"cut":         func(f string, b []byte) error { return os.Truncate(f, int64(len(b)/2)) },
		"longer":      func(f string, b []byte) error { return os.WriteFile(f, append(bytes.Clone(b), 0), 0o600) },
		"empty":       func(f string, _ []byte) error { return os.Truncate(f, 0) },
		"gone":        func(f string, _ []byte) error { return os.Remove(f) },
		"a link":      func(f string, _ []byte) error { return relink(f, elsewhere) },
		"a directory": func(f string, _ []byte) error { return redir(f) },
	} {
		was := map[string][]byte{}
		for _, f := range files {
			whole, err := os.ReadFile(f)
			if err == nil {
				err = damage(f, whole)
			}
			if err != nil {
				t.Fatal(err)
			}
			was[f] = whole
		}
		if n := w.through(t, k, receipt.Digest); n == 0 {
			t.Errorf("%s: nothing was fetched", name)
		}
		if n := w.through(t, k, receipt.Digest); n != 0 {
			t.Errorf("%s: the store is asked %d times for what was fetched", name, n)
		}
		for f, whole := range was {
			if now, err := os.ReadFile(f); err != nil || !bytes.Equal(now, whole) {
				t.Errorf("%s: %s is not there again: %v", name, filepath.Base(f)[:12], err)
			}
		}
	}
	if k.Usage().Damaged == 0 {
		t.Error("no damage was counted")
	}
}

func relink(path, to string) error {
	if err := os.WriteFile(to, []byte("a secret"), 0o600); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.Symlink(to, path)
}

func redir(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.Mkdir(path, 0o700)
}

// Parts of packs that were fetched are kept as parts, and are enough the next time; damaged
// ones cost the whole pack.
func TestKeptParts(t *testing.T) {
	r := storetest.Start(t, &storetest.Registry{})
	s, want := sparseUse(t, opened(t, r))
	k := kept(t)
	fill := func() (requests int) {
		t.Helper()
		r.Take()
		ram := emptyFile(t, "ram")
		again, err := Open(t.Context(), store.Keeping(opened(t, r), k), s.Digest, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Fill(t.Context(), map[string]*os.File{"ram0": ram, "disk0": emptyFile(t, "disk")},
			FillOptions{}); err != nil {
			t.Fatal(err)
		}
		if sumFile(t, ram) != want {
			t.Error("other bytes")
		}
		return storetest.Count(r.Take(), http.MethodGet)
	}
	if fill() == 0 {
		t.Error("nothing was asked for")
	}
	if n := fill(); n != 0 {
		t.Errorf("%d requests for what is kept", n)
	}
	lazily := func() (requests int) {
		t.Helper()
		r.Take()
		lazilyKept(t, opened(t, r), k, s.Digest, want)
		for _, q := range r.Take() {
			if q.Method == http.MethodGet && strings.Contains(q.Path, "/blobs/") {
				requests++
			}
		}
		return requests
	}
	if n := lazily(); n != 0 {
		t.Errorf("%d requests of a restore while the VM runs for what is kept", n)
	}
	parts, err := filepath.Glob(filepath.Join(pathOf(k), store.KeptParts+"*"))
	if err != nil || len(parts) == 0 {
		t.Fatalf("%d parts are kept, %v", len(parts), err)
	}
	info, err := os.Stat(parts[0])
	if err != nil {
		t.Fatal(err)
	}
	damaged := func() {
		t.Helper()
		whole := filepath.Join(pathOf(k), strings.TrimPrefix(filepath.Base(parts[0]), store.KeptParts))
		if err := errors.Join(os.RemoveAll(whole), os.WriteFile(parts[0], make([]byte, info.Size()), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	damaged()
	if lazily() == 0 { // who waits
		t.Error("other parts than these are taken for them")
	}
	damaged()
	if fill() == 0 {
		t.Error("damaged parts were not fetched")
	}
	if n := fill(); n != 0 {
		t.Errorf("%d requests after that", n)
	}
}

// lazilyKept restores RAM to a VM that wants pages of it.
func lazilyKept(t *testing.T, st store.Store, k store.Keeper, d digest.Digest, want [32]byte) {
	t.Helper()
	s, err := Open(t.Context(), store.Keeping(st, k), d, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	ram := newLazyRAM(t)
	ram.data = make([]byte, s.index.Spaces[0].Size)
	var vm sync.WaitGroup
	vm.Go(func() {
		for at := int64(0); at < int64(len(ram.data)); at += 1 << 20 {
			ram.touch(t.Context(), at)
		}
	})
	if err := s.FillWaiting(t.Context(), "ram0", ram, FillOptions{patience: quick}, func(context.Context) error {
		vm.Wait()
		return nil
	}); err != nil {
		t.Error(err)
	}
	if sha256.Sum256(ram.data) != want {
		t.Error("other bytes came to the VM")
	}
}
