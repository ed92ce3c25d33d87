package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot/store"
)

// foreign is a layout that another program has written.
type foreign struct {
	t   *testing.T
	dir string
}

func newForeign(t *testing.T) foreign {
	t.Helper()
	f := foreign{t, t.TempDir()}
	if err := os.MkdirAll(filepath.Join(f.dir, "blobs", "sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.write(v1.ImageLayoutFile, []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return f
}

func (f foreign) write(name string, data []byte) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), data, 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f foreign) blob(data []byte) digest.Digest {
	f.t.Helper()
	d := digest.FromBytes(data)
	f.write(filepath.Join("blobs", "sha256", d.Encoded()), data)
	return d
}

// index of others.
func (f foreign) index(list ...digest.Digest) []byte {
	f.t.Helper()
	var index v1.Index
	for _, d := range list {
		index.Manifests = append(index.Manifests, v1.Descriptor{Digest: d})
	}
	data, err := json.Marshal(index)
	if err != nil {
		f.t.Fatal(err)
	}
	return data
}

// What lies in a directory that others write to ends no daemon: an index that lists itself, indexes below indexes,
// a manifest without end, and one that is not what its name says. Nothing is collected then: what is kept is unknown.
func TestCollectOfFalseManifests(t *testing.T) {
	self := digest.FromString("any")
	for name, make := range map[string]func(f foreign) digest.Digest{
		"it lists itself": func(f foreign) digest.Digest {
			f.write(filepath.Join("blobs", "sha256", self.Encoded()), f.index(self))
			return self
		},
		"it is not what its name says": func(f foreign) digest.Digest {
			f.write(filepath.Join("blobs", "sha256", self.Encoded()), []byte(`{"layers":[]}`))
			return self
		},
		"it is too deep": func(f foreign) digest.Digest {
			d := f.blob([]byte(`{"layers":[]}`))
			for range 5 {
				d = f.blob(f.index(d))
			}
			return d
		},
		"it is too long": func(f foreign) digest.Digest {
			return f.blob(fmt.Appendf(nil, "%*s{}", 4<<20, " "))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newForeign(t)
			stray := f.blob([]byte("of no manifest"))
			f.write(v1.ImageIndexFile, f.index(make(f)))
			l, err := store.NewLayout(f.dir)
			if err != nil {
				t.Fatal(err)
			}
			c, err := l.Collect(t.Context(), 0, false)
			if !errors.Is(err, errdefs.ErrDataLoss) || c.Files != 0 {
				t.Errorf("collected %+v, %v", c, err)
			}
			if _, err := os.Stat(filepath.Join(f.dir, "blobs", "sha256", stray.Encoded())); err != nil {
				t.Error(err)
			}
		})
	}
}

// An index of another program keeps what its indexes list, four deep. Each manifest is read once, however many list it.
func TestCollectOfNestedIndexes(t *testing.T) {
	f := newForeign(t)
	kept := []digest.Digest{f.blob([]byte("layer"))}
	kept = append(kept, f.blob(fmt.Appendf(nil, `{"layers":[{"digest":%q}]}`, kept[0])))
	for i := range 4 {
		last := kept[len(kept)-1]
		list := []digest.Digest{last}
		for range 100 * i { // 100*200*300 readings of the innermost, without a set
			list = append(list, last)
		}
		kept = append(kept, f.blob(f.index(list...)))
	}
	f.write(v1.ImageIndexFile, f.index(kept[len(kept)-1]))
	f.blob([]byte("of no manifest"))
	l, err := store.NewLayout(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	c, err := l.Collect(t.Context(), 0, false)
	if err != nil || c.Files != 1 {
		t.Errorf("collected %+v, %v", c, err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	for _, d := range kept {
		if _, err := os.Stat(filepath.Join(f.dir, "blobs", "sha256", d.Encoded())); err != nil {
			t.Error(err)
		}
	}
}
