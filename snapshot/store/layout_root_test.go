package store_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/snapshot/store"
)

const rootUID = "9b2f4f52-97c3-4dd3-8a3e-7b1f3b1f0a11"

// rootNode is a node that shares a directory of layouts with others.
type rootNode struct {
	t   *testing.T
	cfg *config.Config
}

func newRootNode(t *testing.T, layout string) rootNode {
	t.Helper()
	cfg := config.Default()
	cfg.StateDir, cfg.Registry.Layout = t.TempDir(), layout
	return rootNode{t, cfg}
}

func (n rootNode) open(uid string) (store.Store, error) {
	return store.Open(store.ConfigOf(n.cfg, store.LayoutPrefix+filepath.Join(n.cfg.Registry.Layout, uid)))
}

// put stores something, as a push does.
func (n rootNode) put(uid string) error {
	st, err := n.open(uid)
	if err == nil {
		err = store.Claim(st)
	}
	if err != nil {
		return err
	}
	return n.write(st)
}

// ask has the store take something, as a question for rights does.
func (n rootNode) ask(uid string) error {
	st, err := n.open(uid)
	if err != nil {
		return err
	}
	return n.write(st)
}

func (n rootNode) write(st store.Store) error {
	data := []byte("x")
	return st.Put(n.t.Context(), store.Blob(digest.FromBytes(data)), store.Bytes(data, digest.FromBytes(data)))
}

func (n rootNode) tags() error {
	st, err := n.open(rootUID)
	if err != nil {
		return err
	}
	_, err = st.Tags(n.t.Context())
	return err
}

// A directory of layouts that is not mounted any more is no directory without snapshots: nothing is stored below its
// mount point, and nothing counts as gone.
func TestRootThatIsNotMounted(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	a, b := newRootNode(t, root), newRootNode(t, root)
	if err := a.tags(); err != nil {
		t.Errorf("tags before the first use: %v", err)
	}
	if _, err := os.Stat(root); err == nil {
		t.Error("a question has made the directory")
	}
	for name, n := range map[string]rootNode{"a": a, "b": b} {
		if err := n.put(rootUID); err != nil {
			t.Fatalf("put by node %s: %v", name, err)
		}
	}
	away := root + ".away"
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	move(root, away)
	for _, made := range []bool{false, true} {
		if made {
			if err := os.Mkdir(root, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for uid, n := range map[string]rootNode{rootUID: a, "fd0c4b1e-5c2a-4a37-a3c7-54b1a9a2d0f3": b, "golden": a} {
			for verb, call := range map[string]func(string) error{"put": n.put, "ask": n.ask} {
				if err := call(uid); !errdefs.IsUnavailable(err) {
					t.Errorf("%s below a directory that is not mounted: %v", verb, err)
				}
			}
		}
		if err := a.tags(); !errdefs.IsUnavailable(err) {
			t.Errorf("tags of a directory that is not mounted: %v", err)
		}
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Errorf("below the mount point: %v, %v", left, err)
	}
	if err := os.Remove(root); err != nil {
		t.Fatal(err)
	}
	move(away, root)
	if err := a.ask("doctor"); err != nil {
		t.Errorf("ask after it was mounted again: %v", err)
	}
}

// A question is asked before the file system is mounted, as at the start of the host. It makes no directory the node's.
func TestRootThatWasAskedOnly(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	a, b := newRootNode(t, root), newRootNode(t, root)
	for _, uid := range []string{"doctor", rootUID} {
		if err := a.ask(uid); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(root, root+".below"); err != nil {
		t.Fatal(err)
	}
	if err := b.put(rootUID); err != nil { // into what is mounted now
		t.Fatal(err)
	}
	for range 2 {
		if err := a.put(rootUID); err != nil {
			t.Errorf("put into what was mounted after a question: %v", err)
		}
	}
}

// Another directory at the same path is refused until the operator says that it is meant.
func TestRootThatIsAnother(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	a, b := newRootNode(t, root), newRootNode(t, root)
	if err := a.put(rootUID); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	if err := b.put(rootUID); err != nil { // its first use
		t.Fatal(err)
	}
	if err := a.put(rootUID); !errdefs.IsUnavailable(err) {
		t.Errorf("put into another directory: %v", err)
	}
	if err := os.RemoveAll(a.cfg.StoresDir()); err != nil {
		t.Fatal(err)
	}
	if err := a.put(rootUID); err != nil {
		t.Errorf("put into the directory that is meant: %v", err)
	}
}

// The prefix of a record may be another directory than the node's own. The VM may be a member of a set.
func TestRootOfAnotherPrefix(t *testing.T) {
	for _, uid := range []string{rootUID, rootUID + ".web", rootUID + ".web.0"} {
		t.Run(uid, func(t *testing.T) { rootOfAnotherPrefix(t, uid) })
	}
}

func rootOfAnotherPrefix(t *testing.T, uid string) {
	n := newRootNode(t, filepath.Join(t.TempDir(), "own"))
	other := filepath.Join(t.TempDir(), "other")
	repository := store.LayoutPrefix + filepath.Join(other, uid)
	data := []byte("x")
	put := func() error {
		st, err := store.Open(store.ConfigOf(n.cfg, repository))
		if err == nil {
			err = store.Claim(st)
		}
		if err != nil {
			return err
		}
		return st.Put(t.Context(), store.Blob(digest.FromBytes(data)), store.Bytes(data, digest.FromBytes(data)))
	}
	if err := put(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(other); err != nil {
		t.Fatal(err)
	}
	if err := put(); !errdefs.IsUnavailable(err) {
		t.Errorf("put below a directory that is not mounted: %v", err)
	}
}

// Each worker has a store of its own: many claim one directory at once, as at a drain.
func TestRootClaimedAtOnce(t *testing.T) {
	n := newRootNode(t, filepath.Join(t.TempDir(), "root"))
	var g errgroup.Group
	for range 32 {
		g.Go(func() error {
			st, err := n.open(rootUID)
			if err != nil {
				return err
			}
			return store.Claim(st)
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	notes, err := filepath.Glob(filepath.Join(n.cfg.StoresDir(), "*"))
	if err != nil || len(notes) != 1 {
		t.Errorf("notes %q, %v", notes, err)
	}
	left, err := filepath.Glob(filepath.Join(n.cfg.Registry.Layout, "*"))
	if err != nil || len(left) != 2 { // and .lock
		t.Errorf("in the directory: %q, %v", left, err)
	}
}

// A directory that cannot be told from others, as after a crash of its server, is Unavailable, and no loss of data.
func TestRootThatCannotBeTold(t *testing.T) {
	for _, of := range []string{"mark", "note"} {
		n := newRootNode(t, filepath.Join(t.TempDir(), "root"))
		if err := n.put(rootUID); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(n.cfg.Registry.Layout, "godwit-store")
		if of == "note" {
			notes, err := filepath.Glob(filepath.Join(n.cfg.StoresDir(), "*"))
			if err != nil || len(notes) != 1 {
				t.Fatalf("notes %q, %v", notes, err)
			}
			file = notes[0]
		}
		if err := os.Truncate(file, 0); err != nil {
			t.Fatal(err)
		}
		if err := n.tags(); !errdefs.IsUnavailable(err) || errdefs.IsDataLoss(err) {
			t.Errorf("with an empty %s: %v", of, err)
		}
	}
}
