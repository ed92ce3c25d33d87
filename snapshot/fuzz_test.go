package snapshot

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	digest "github.com/opencontainers/go-digest"
	"github.com/zeebo/blake3"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/precopy"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/sign"
	"godwit.dev/godwit/snapshot/store"
)

// A page table lies next to the RAM file, and its writer has read foreign bytes: whatever it holds, what opens
// names packs and frames that it has.
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

// What a push that failed has left: whatever lies there, each page that is taken from it lies in a
// space of the VM, and in a pack that the list has.
func FuzzFinished(f *testing.F) {
	about, spaces := [32]byte{1}, []SpaceInfo{{Name: "ram0", Size: 1 << 20}, {Name: "disk0", Size: 5000}}
	created := time.Unix(1_700_000_000, 0)
	ram, disk := precopy.NewArea(Space{}, 0, spaces[0].Size), precopy.NewArea(Space{}, 1, spaces[1].Size)
	l := &finished{file: fuzzFile(f), about: about}
	l.begin(7)
	pages := func(n uint8) format.Frame { return format.Frame{Stored: uint32(n) * format.PageSize, Pages: n} }
	l.add(&pack{Pack: format.Pack{Size: 4 * format.PageSize}}, []*frame{
		{Frame: pages(2), places: []place{{area: ram, page: 3}, {area: disk, page: 1}}},
		{Frame: format.Frame{Offset: 2 * format.PageSize, Stored: 2 * format.PageSize, Pages: 2},
			places: []place{{area: ram, page: 255}, {area: ram, page: 3}}},
	})
	l.add(&pack{Pack: format.Pack{SHA256: [32]byte{9}, Size: format.PageSize}, key: seal.FromSecret([32]byte{2})},
		[]*frame{{Frame: pages(1), places: []place{{area: ram, page: 4}}}})
	data, err := os.ReadFile(l.file.Name())
	if err != nil {
		f.Fatal(err)
	}
	binary.LittleEndian.PutUint64(data[24:], uint64(created.UnixNano()))
	data = rehash(data)
	if table, end := parseFinished(data, about, spaces, created); table == nil || end != int64(len(data)) {
		f.Fatal("the seed is none")
	}
	f.Add(data)
	f.Add(data[:len(data)-20])
	f.Fuzz(func(t *testing.T, data []byte) {
		data = rehash(bytes.Clone(data))
		table, end := parseFinished(data, about, spaces, created.Add(time.Minute))
		if table == nil {
			return
		}
		if end > int64(len(data)) || len(table.packs) == 0 {
			t.Fatalf("%d packs, up to %d of %d bytes", len(table.packs), end, len(data))
		}
		named, sizes := make([]Space, len(spaces)), make([]int64, len(spaces))
		for i, s := range spaces {
			named[i].Name, sizes[i] = s.Name, s.Size
		}
		w := &capture{push: &push{}, pre: precopy.New(named, sizes, precopy.Options{})}
		w.marks = precopy.NewPages[mark](w.pre.Areas)
		w.inherit(table)
		w.each(func(space int, page uint64, m *mark) {
			if page*format.PageSize >= uint64(spaces[space].Size) || m.frame.pack == nil || m.slot >= m.frame.Pages ||
				!m.frame.again {
				t.Fatalf("page %d of %s: %+v", page, spaces[space].Name, m)
			}
		})
	})
}

// rehash gives what the fuzzer has changed its hashes, so that it comes to what is checked after them.
func rehash(data []byte) []byte {
	if len(data) < finishedHeaderN {
		return data
	}
	sum := blake3.Sum256(data[:64])
	copy(data[64:], sum[:])
	for at := finishedHeaderN; at+recordHeadN <= len(data); {
		n := int64(binary.LittleEndian.Uint32(data[at:]))
		body := data[at+recordHeadN:]
		if n > int64(len(body)) {
			break
		}
		sum := blake3.Sum256(body[:n])
		copy(data[at+4:], sum[:])
		at += recordHeadN + int(n)
	}
	return data
}

func fuzzFile(f *testing.F) *os.File {
	file, err := os.Create(filepath.Join(f.TempDir(), "f"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { file.Close() })
	return file
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

// What lies where a signature is looked for never vouches: this node trusts none of the keys that have signed
// anything.
func FuzzSignatures(f *testing.F) {
	d := digest.FromString("a manifest")
	f.Add([]byte(`{"schemaVersion":2,"layers":[{"mediaType":"`+mediaTypeSigned+`","size":9,"digest":"`+digest.FromString(
		`{"text":1}`).String()+
		`","annotations":{"`+annotationSignature+`":"aGVsbG8="}}]}`), []byte(`{"text":1}`))
	f.Add([]byte(`{"critical":{"image":{"docker-manifest-digest":"`+d.String()+`"}}}`),
		[]byte(`{"critical":{"image":{"docker-manifest-digest":"`+d.String()+`"},"type":"x"}}`))
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
			t.Fatal("no key is trusted")
		}
	})
}
