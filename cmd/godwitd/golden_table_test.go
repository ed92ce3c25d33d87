package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"testing"
	"time"

	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/daemon/registry"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// Whoever reads a golden snapshot holds up nobody whose table is there, nor who wants another
// one; who waits for it leaves when its operation is aborted, and at a bound.
func TestGoldenReadHoldsUpNobody(t *testing.T) {
	cfg := config.Default()
	cfg.RunDir = t.TempDir()
	g := &golden{Registry: registry.New(cfg)}
	slow, there := digest.FromString("slow"), digest.FromString("there")
	if err := os.MkdirAll(cfg.GoldenDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.GoldenTable(there.Encoded()), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	leave, err := g.enter(t.Context(), slow) // a registry that gives no answer
	if err != nil {
		t.Fatal(err)
	}
	if err := g.ready(t.Context(), there); err != nil {
		t.Errorf("a table that is there: %v", err)
	}
	other, err := g.enter(t.Context(), digest.FromString("other"))
	if err != nil {
		t.Fatal(err)
	}
	other()
	ctx, abort := context.WithCancelCause(t.Context())
	aborted := errors.New("aborted")
	done := make(chan error, 1)
	go func() { done <- g.ready(ctx, slow) }()
	abort(aborted)
	if err := <-done; !errors.Is(err, aborted) {
		t.Errorf("a wait that is aborted: %v", err)
	}
	g.patience = time.Millisecond
	if err := g.ready(t.Context(), slow); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait without end: %v", err)
	}
	g.patience = 0
	go func() { done <- g.ready(t.Context(), slow) }()
	if err := os.WriteFile(cfg.GoldenTable(slow.Encoded()), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	leave()
	if err := <-done; err != nil {
		t.Errorf("what another one has read: %v", err)
	}
}

// A golden snapshot that takes the tag of another one leaves nothing of that behind; others
// stay, and a store that refuses costs no more than a line of the log.
func TestGoldenIsReplaced(t *testing.T) {
	for _, refuses := range []int{0, http.StatusForbidden} {
		s := storetest.Start(t, &storetest.Registry{NoDelete: refuses})
		cfg, c := config.Default(), s.Config(t, "godwit")
		cfg.Registry.Repository, cfg.Registry.PlainHTTP, cfg.Registry.DockerConfig = c.Repository, true, c.DockerConfig
		g := &golden{Registry: registry.New(cfg)}
		g.Config.RunDir = t.TempDir()
		st, err := g.place()
		if err != nil {
			t.Fatal(err)
		}
		if all := g.tagged(t.Context()); len(all) != 0 {
			t.Errorf("of no repository: %v", all)
		}
		put := func(tag, text string) digest.Digest {
			t.Helper()
			m := v1.Manifest{MediaType: v1.MediaTypeImageManifest, ArtifactType: snapshot.GoldenType, Config: v1.DescriptorEmptyJSON, Layers: []v1.Descriptor{}, Annotations: map[string]string{"text": text}}
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
		first, other := put("one", "first"), put("other", "other")
		before := g.tagged(t.Context())
		second := put("one", "second")
		g.replaced(t.Context(), before, second)
		g.replaced(t.Context(), g.tagged(t.Context()), second) // the same once more
		for d, want := range map[digest.Digest]bool{first: refuses != 0, second: true, other: true} {
			if there, err := snapshot.Exists(t.Context(), st, d); err != nil || there != want {
				t.Errorf("refused with %d: %s is there: %v, %v", refuses, d, there, err)
			}
		}
	}
}
