package golden

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// shelfIn has its tables in a directory of the test, and its store in a registry.
func shelfIn(t *testing.T, r *storetest.Registry) *Shelf {
	t.Helper()
	cfg := config.Default()
	cfg.RunDir = t.TempDir()
	var place store.Config
	if r != nil {
		place = r.Config(t, "godwit")
		cfg.Registry.Repository = place.Repository
	}
	return &Shelf{Config: cfg, Store: func(repository string) store.Config {
		c := place
		c.Repository = repository
		return c
	}}
}

func table(t *testing.T, s *Shelf, d digest.Digest, text string) {
	t.Helper()
	err := s.tables().Make(d.Encoded(), func(f *os.File) error {
		_, err := f.WriteString(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A call that reads a golden snapshot delays no call whose table is there, nor one that wants
// another snapshot. A call that waits for it leaves when its operation is aborted, and at a
// bound.
func TestReadHoldsUpNoOther(t *testing.T) {
	s := shelfIn(t, nil)
	slow, there := digest.FromString("slow"), digest.FromString("there")
	table(t, s, there, "")
	leave, err := s.enter(t.Context(), slow) // a registry that gives no answer
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(t.Context(), there.String()); err != nil {
		t.Errorf("a table that is there: %v", err)
	}
	other, err := s.enter(t.Context(), digest.FromString("other"))
	if err != nil {
		t.Fatal(err)
	}
	other()
	ctx, abort := context.WithCancelCause(t.Context())
	aborted := errors.New("aborted")
	done := make(chan error, 1)
	go func() { done <- s.Ready(ctx, slow.String()) }()
	abort(aborted)
	if err := <-done; !errors.Is(err, aborted) {
		t.Errorf("a wait that is aborted: %v", err)
	}
	s.patience = time.Millisecond
	if err := s.Ready(t.Context(), slow.String()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait without end: %v", err)
	}
	s.patience = 0
	go func() { done <- s.Ready(t.Context(), slow.String()) }()
	table(t, s, slow, "")
	leave()
	if err := <-done; err != nil {
		t.Errorf("what another one has read: %v", err)
	}
}

// put stores a manifest of a golden snapshot under a tag.
func put(t *testing.T, st store.Store, tag, text string) digest.Digest {
	t.Helper()
	m := v1.Manifest{MediaType: v1.MediaTypeImageManifest, ArtifactType: snapshot.GoldenType,
		Config: v1.DescriptorEmptyJSON, Layers: []v1.Descriptor{}, Annotations: map[string]string{"text": text}}
	m.SchemaVersion = 2
	data, err := json.Marshal(m)
	if err == nil {
		err = snapshot.Accepts(t.Context(), st)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := store.Bytes(data, digest.FromBytes(data))
	c.MediaType = v1.MediaTypeImageManifest
	if err := st.Put(t.Context(), store.Manifest(tag), c); err != nil {
		t.Fatal(err)
	}
	return c.Digest
}

// A golden snapshot that takes the tag of another one leaves nothing of that one. Others stay,
// and a store that refuses costs no more than a line of the log.
func TestReplaced(t *testing.T) {
	for _, refuses := range []int{0, http.StatusForbidden} {
		s := shelfIn(t, storetest.Start(t, &storetest.Registry{NoDelete: refuses}))
		st, err := s.place()
		if err != nil {
			t.Fatal(err)
		}
		if all := tagged(t.Context(), st); len(all) != 0 {
			t.Errorf("of no repository: %v", all)
		}
		first, other := put(t, st, "one", "first"), put(t, st, "other", "other")
		replaced := s.Replacing(t.Context())
		second := put(t, st, "one", "second")
		replaced(t.Context(), second.String())
		s.Replacing(t.Context())(t.Context(), second.String()) // the same once more
		for d, want := range map[digest.Digest]bool{first: refuses != 0, second: true, other: true} {
			if there, err := snapshot.Exists(t.Context(), st, d); err != nil || there != want {
				t.Errorf("refused with %d: %s is there: %v, %v", refuses, d, there, err)
			}
		}
	}
}

// A node without a store has no golden snapshots, uses none, and says which key is missing to
// who wants to see or make them.
func TestWithoutAStore(t *testing.T) {
	s := shelfIn(t, nil)
	if d, err := s.Find(t.Context(), digest.FromString("image").String(), &machinev1.QueryResponse{}); d != "" ||
		err != nil {
		t.Errorf("find: %q, %v", d, err)
	}
	_, err := s.List(t.Context())
	for what, err := range map[string]error{"list": err, "remove": s.Remove(t.Context(), &nodev1.TemplateInfo{})} {
		if !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A node that is upgraded in place uses the tables that the release before has made. Its old
// shims find those that are made from then on. What is evicted goes in both places.
func TestTablesOfTheReleaseBefore(t *testing.T) {
	s := shelfIn(t, nil)
	before, after := digest.FromString("before"), digest.FromString("after")
	old := func(d digest.Digest) string { return filepath.Join(s.Config.RunDir, "golden", d.Encoded()+".table") }
	if err := os.MkdirAll(filepath.Dir(old(before)), 0o700); err != nil {
		t.Fatal(err)
	}
	// as that one leaves them
	for path, text := range map[string]string{old(before): "keys", old(after) + ".new": "half"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	content := func(d digest.Digest) string {
		t.Helper()
		f, err := TablesOf(s.Config).Open(d.Encoded())
		if err != nil {
			return err.Error()
		}
		defer f.Close()
		data := make([]byte, 100)
		n, _ := f.Read(data)
		return string(data[:n])
	}
	if got := content(before); got != "keys" {
		t.Errorf("a shim of this release with a daemon of the one before: %q", got)
	}
	s.TakeOver(t.Context())
	if err := s.Ready(t.Context(), before.String()); err != nil {
		t.Errorf("its table is not used: %v", err)
	}
	if got := content(before); got != "keys" {
		t.Errorf("after it was taken over: %q", got)
	}
	table(t, s, after, "new keys")
	if data, err := os.ReadFile(old(after)); err != nil || string(data) != "new keys" {
		t.Errorf("a shim of the release before finds %q, %v", data, err)
	}
	s.Config.Template.Image.Max = 1
	if err := os.Chtimes(TablesOf(s.Config).Path(before.Encoded()), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	s.Tidy(t.Context())
	for path, want := range map[string]bool{
		old(before): false, TablesOf(s.Config).Path(before.Encoded()): false, old(after): true,
		TablesOf(s.Config).Path(after.Encoded()): true,
	} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("after an eviction %s: %v", path, err)
		}
	}
	if err := s.forget(after.Encoded()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old(after)); err == nil {
		t.Error("what was forgotten is in the directory of the release before")
	}
}

// A table that a shim reads is not evicted.
func TestTableInUseStays(t *testing.T) {
	s := shelfIn(t, nil)
	d := digest.FromString("used")
	table(t, s, d, "keys")
	f, err := TablesOf(s.Config).Open(d.Encoded())
	if err != nil {
		t.Fatal(err)
	}
	s.Config.Template.Image.Max, s.Config.Template.Image.MaxSize = 0, 0
	s.Tidy(t.Context())
	if !s.there(d) {
		t.Error("a table in use was evicted")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s.Tidy(t.Context())
	if s.there(d) {
		t.Error("a table that is not in use stays")
	}
}
