package snapshot

import (
	"os"
	"path/filepath"
	"testing"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot/sign"
	"godwit.dev/godwit/snapshot/store"
)

// A page table lies beside the RAM file, and who wrote it has read foreign bytes: whatever
// it holds, what opens names packs and frames that it has.
func FuzzTable(f *testing.F) {
	w := newFuzzWorld(f)
	table, err := os.ReadFile(w)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(table)
	f.Fuzz(func(t *testing.T, data []byte) {
		file := blobFile(t, "table", data)
		table, err := OpenTable(file)
		if err != nil {
			return
		}
		for i := range table.frames {
			if table.frames[i].pack == nil {
				t.Fatalf("frame %d is of no pack", i)
			}
		}
		for _, p := range table.packs {
			packDescriptor(p.Pack)
		}
	})
}

// newFuzzWorld is a small table that a restore has written.
func newFuzzWorld(f *testing.F) (path string) {
	f.Helper()
	path = filepath.Join(f.TempDir(), "table")
	ram, err := os.Create(filepath.Join(f.TempDir(), "ram"))
	if err != nil {
		f.Fatal(err)
	}
	defer ram.Close()
	table, err := os.Create(path)
	if err != nil {
		f.Fatal(err)
	}
	defer table.Close()
	st, err := store.NewLayout(mustAbs(f, "testdata/layout-v1"))
	if err != nil {
		f.Fatal(err)
	}
	tags, err := st.Tags(f.Context())
	if err != nil || len(tags) == 0 {
		f.Fatal(tags, err)
	}
	info, err := st.Stat(f.Context(), store.Manifest(tags[0]))
	if err != nil {
		f.Fatal(err)
	}
	s, err := Open(f.Context(), st, info.Digest, nil)
	if err == nil {
		err = s.Fill(f.Context(), map[string]*os.File{"ram0": ram}, FillOptions{Table: table})
	}
	if err != nil {
		f.Fatal(err)
	}
	return path
}

func mustAbs(f *testing.F, path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		f.Fatal(err)
	}
	return abs
}

// What lies where a signature is looked for never vouches: this node trusts nobody who has
// signed anything.
func FuzzSignatures(f *testing.F) {
	d := digest.FromString("a manifest")
	f.Add([]byte(`{"schemaVersion":2,"layers":[{"mediaType":"`+mediaTypeSigned+`","size":9,"digest":"`+digest.FromString(`{"text":1}`).String()+
		`","annotations":{"`+annotationSignature+`":"aGVsbG8="}}]}`), []byte(`{"text":1}`))
	f.Add([]byte(`{"critical":{"image":{"docker-manifest-digest":"`+d.String()+`"}}}`), []byte(`{"critical":{"image":{"docker-manifest-digest":"`+d.String()+`"},"type":"x"}}`))
	f.Fuzz(func(t *testing.T, manifest, text []byte) {
		st := &memory{m: map[string][]byte{}}
		c := store.Bytes(text, digest.FromBytes(text))
		if err := st.Put(t.Context(), store.Blob(c.Digest), c); err != nil {
			t.Fatal(err)
		}
		var trust sign.Trust
		if ok, _ := vouched(t.Context(), st, &trust, d, manifest); ok {
			t.Fatal("somebody vouches")
		}
		if trust.Verify(d, text, manifest) {
			t.Fatal("nobody is trusted")
		}
	})
}
