package snapshot

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"godwit.dev/godwit/snapshot/store"
)

// holding notes which blobs a hold lists before the snapshot's own manifest comes.
type holding struct {
	store.Store
	tag string

	mu     sync.Mutex
	holds  []string
	before []string // the holds until then
}

func (h *holding) Put(ctx context.Context, o store.Object, what store.Content) error {
	if o == store.Manifest(h.tag) {
		h.before = slices.Clone(h.holds)
	} else if strings.HasPrefix(string(what.MediaType), "application/vnd.oci.image.manifest") {
		body, err := what.Open()
		if err != nil {
			return err
		}
		defer body.Close()
		data, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		h.mu.Lock()
		h.holds = append(h.holds, string(data))
		h.mu.Unlock()
	}
	return h.Store.Put(ctx, o, what)
}

// A push that takes longer than a registry waits with its collector keeps its packs, and
// leaves nothing but the snapshot.
func TestLongPushKeepsItsPacks(t *testing.T) {
	for _, c := range []struct {
		every time.Duration
		kept  bool
	}{{time.Nanosecond, true}, {0, false}} { // by default what is over soon is not worth a hold
		w := newWorld(t, 61)
		w.opts.HoldEvery = c.every
		st := &holding{Store: w.st, tag: w.opts.Ref.Tag()}
		receipt, err := Push(t.Context(), st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		s := w.restore(t, receipt.Digest).snap
		for _, pack := range s.parts.packs {
			held := slices.ContainsFunc(st.before, func(m string) bool {
				return strings.Contains(m, HoldType) && strings.Contains(m, pack.Digest.String())
			})
			if held != c.kept {
				t.Errorf("every %s: pack %s: held %v before the manifest", c.every, pack.Digest, held)
			}
		}
		tags, err := w.st.Tags(t.Context())
		if err != nil || len(tags) != 1 {
			t.Errorf("tags %q after the push, %v", tags, err)
		}
	}
}
