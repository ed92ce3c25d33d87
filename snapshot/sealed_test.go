package snapshot

import (
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/sign"
	"godwit.dev/godwit/snapshot/store"
)

func secret(b byte) seal.Secret { return bytes.Repeat([]byte{b}, 32) }

// secrets are bytes of the VM that must not be found in a store: of each page that does
// not compress, of the device state, of the Spec and of the resume data.
func (w *world) secrets(t *testing.T) [][]byte {
	t.Helper()
	list := [][]byte{[]byte("hunter2-of-the-spec"), []byte("hunter2-of-resume")}
	state, err := os.ReadFile(w.src.State.Name())
	if err != nil {
		t.Fatal(err)
	}
	list = append(list, state[512:544])
	for _, s := range w.src.Spaces {
		data, err := os.ReadFile(s.File.Name())
		if err != nil {
			t.Fatal(err)
		}
		for ; len(data) >= format.PageSize; data = data[format.PageSize:] {
			if page := data[:format.PageSize]; !format.IsZero(page) {
				list = append(list, page[64:96])
			}
		}
	}
	return list
}

// found counts the secrets in the blobs of the store, read-only disks apart.
func (w *world) found(t *testing.T, secrets [][]byte) (n int) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(w.dir, "blobs"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == w.src.Disks[0].Digest.Encoded() {
			return err
		}
		data, err := os.ReadFile(path)
		for _, s := range secrets {
			if bytes.Contains(data, s) {
				n++
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func sealedWorld(t *testing.T, seed uint64) *world {
	w := newWorld(t, seed)
	w.opts.Spec.Container = &spec.Container{Image: "hunter2-of-the-spec", OCI: &specs.Spec{
		Process: &specs.Process{Args: []string{"run"}}, Linux: &specs.Linux{},
	}}
	w.opts.Resume = json.RawMessage(`{"token":"hunter2-of-resume"}`)
	return w
}

// With sealing on no page, state or Spec is in the store in the clear; without it
// the search finds those that did not shrink: half of them at least.
func TestSealedStoreHoldsNothingPlain(t *testing.T) {
	plain, sealed := sealedWorld(t, 31), sealedWorld(t, 31)
	sealed.opts.Keys.Locks.Keys = []seal.Secret{secret(1)}
	for _, w := range []*world{plain, sealed} {
		receipt, err := Push(t.Context(), w.st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		w.restore(t, receipt.Digest)
	}
	secrets := plain.secrets(t)
	if n := plain.found(t, secrets); n < len(secrets)/2 {
		t.Errorf("the search finds %d of %d in a snapshot that is not sealed", n, len(secrets))
	}
	if n := sealed.found(t, secrets); n != 0 {
		t.Errorf("%d of %d secrets are in the store in the clear", n, len(secrets))
	}
}

// A sealed snapshot gives back everything, to each holder of a key and to no other.
func TestSealedOpensForItsKeys(t *testing.T) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	w := sealedWorld(t, 32)
	w.opts.Keys.Locks = seal.Locks{Keys: []seal.Secret{secret(1), secret(2)},
		Recipients: []string{id.Recipient().String()}}
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		locks seal.Locks
		class func(error) bool
	}{
		"first key":                {seal.Locks{Keys: []seal.Secret{secret(1)}}, nil},
		"the same, after rotation": {seal.Locks{Keys: []seal.Secret{secret(9), secret(1)}, Required: true}, nil},
		"age identity":             {seal.Locks{Identities: id.String()}, nil},
		"no key":                   {seal.Locks{}, errdefs.IsFailedPrecondition},
		"a key that only opens":    {seal.Locks{Keys: []seal.Secret{secret(2)}}, errdefs.IsFailedPrecondition},
		"another's identity":       {seal.Locks{Identities: newIdentity(t)}, errdefs.IsFailedPrecondition},
	} {
		s, err := OpenWith(t.Context(), w.st, receipt.Digest, &w.opts.Ref, &Keys{Locks: c.locks})
		if c.class != nil {
			if !c.class(err) || !strings.Contains(err.Error(), secret(1).ID()) ||
				!strings.Contains(err.Error(), "seal.key_files") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var state bytes.Buffer
		want, err := os.ReadFile(w.src.State.Name())
		if err := s.State(t.Context(), &state); err != nil || !bytes.Equal(state.Bytes(), want) {
			t.Errorf("%s: state differs, %v", name, err)
		}
		if err != nil || s.Config.Spec == nil || s.Config.Spec.Container.Image != "hunter2-of-the-spec" ||
			!bytes.Equal(s.Config.Resume, w.opts.Resume) {
			t.Errorf("%s: config %+v", name, s.Config)
		}
		if spaces, err := Diff(t.Context(), s, s); err != nil || len(spaces) != 2 || spaces[0].Same == 0 ||
			spaces[0].Changed != 0 {
			t.Errorf("%s: it differs from itself: %+v, %v", name, spaces, err)
		}
		other := sealedWorld(t, 40)
		if _, err := s.Copy(t.Context(), other.st, CopyOptions{}); err != nil {
			t.Errorf("%s: copy: %v", name, err)
		}
		if v, err := s.Verify(t.Context(), VerifyOptions{}); err != nil || len(v.Bad) != 0 || v.Frames == 0 {
			t.Errorf("%s: verdict %+v, %v", name, v, err)
		}
	}
}

func newIdentity(t *testing.T) string {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id.String()
}

// A policy of this node refuses what is not sealed, by name.
func TestSealRequired(t *testing.T) {
	w := newWorld(t, 33)
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	_, err = OpenWith(t.Context(), w.st, receipt.Digest, nil,
		&Keys{Locks: seal.Locks{Keys: []seal.Secret{secret(1)}, Required: true}})
	if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "seal.required") {
		t.Error(err)
	}
}

// A node that takes sealed or signed snapshots only makes no other. Nothing of the VM is sent where the node has no
// key to do so.
func TestRequiredHoldsForPushes(t *testing.T) {
	_, public := keyFiles(t, newECDSA(t))
	for key, keys := range map[string]Keys{
		"seal.recipients": {Locks: seal.Locks{Required: true, Identities: newIdentity(t)}},
		"sign.key_file":   {Trust: trust(t, sign.Config{Trusted: []string{public}, Required: true})},
	} {
		w := newWorld(t, 37)
		w.opts.Keys = keys
		st := &hooked{Store: w.st, before: func(o store.Object) { t.Errorf("%s: %s was sent", key, o) }}
		if _, err := Push(t.Context(), st, w.src, w.opts); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// The second snapshot of a sealed VM refers to the packs of the first, which are
// sealed under another key, and a third to both.
func TestSealedIncrement(t *testing.T) {
	w := sealedWorld(t, 34)
	w.opts.Keys.Locks.Keys = []seal.Secret{secret(1)}
	first, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	last := first
	for round := range 2 {
		r := w.restore(t, last.Digest)
		if w.opts.Parent, err = OpenTable(r.table); err != nil {
			t.Fatal(err)
		}
		page := bytes.Repeat([]byte{byte(round), 0xa7, 0x13, 0x55}, format.PageSize/4)
		if _, err := w.src.Spaces[0].File.WriteAt(page, int64(round)*format.PageSize); err != nil {
			t.Fatal(err)
		}
		w.opts.Ref.Generation++
		if last, err = Push(t.Context(), w.st, w.src, w.opts); err != nil {
			t.Fatal(err)
		}
		if last.Figures.New != format.PageSize {
			t.Errorf("round %d: %d new bytes", round, last.Figures.New)
		}
	}
	w.restore(t, last.Digest)
}

// What is sealed and what is not never meet in one snapshot: with sealing on nothing
// plain is needed, with sealing off there is no place for keys.
func TestSealingSwitched(t *testing.T) {
	for _, on := range []bool{true, false} {
		w := sealedWorld(t, 35)
		locks := seal.Locks{Keys: []seal.Secret{secret(1)}}
		if !on {
			w.opts.Keys.Locks = locks
		}
		first, err := Push(t.Context(), w.st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		r := w.restore(t, first.Digest)
		if w.opts.Parent, err = OpenTable(r.table); err != nil {
			t.Fatal(err)
		}
		w.opts.Ref.Generation++
		w.opts.Keys.Locks = seal.Locks{}
		if on {
			w.opts.Keys.Locks = locks
		}
		second, err := Push(t.Context(), w.st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		if second.Figures.New != first.Figures.New {
			t.Errorf("on %v: %d of %d bytes are new", on, second.Figures.New, first.Figures.New)
		}
		w.restore(t, second.Digest)
	}
}

// A registry that alters the sealed parts and all digests with them gains nothing: each
// is DataLoss or refused before a page is written.
func TestSealedPartsAltered(t *testing.T) {
	w := sealedWorld(t, 36)
	w.opts.Keys.Locks.Keys = []seal.Secret{secret(1)}
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	m := w.manifest(t, receipt.Digest)
	config, err := os.ReadFile(w.blob(m.Config.Digest))
	if err != nil {
		t.Fatal(err)
	}
	alter := func(change func(*Config)) digest.Digest {
		c := new(Config)
		if err := json.Unmarshal(config, c); err != nil {
			t.Fatal(err)
		}
		change(c)
		return w.replaceConfig(t, receipt.Digest, c)
	}
	for name, d := range map[string]digest.Digest{
		"body":            alter(func(c *Config) { c.Sealed.Body[40] ^= 1 }),
		"lock":            alter(func(c *Config) { c.Sealed.Locks[0].Data[20] ^= 1 }),
		"short lock":      alter(func(c *Config) { c.Sealed.Locks[0].Data = c.Sealed.Locks[0].Data[:30] }),
		"no lock":         alter(func(c *Config) { c.Sealed.Locks = nil }),
		"a spec with it":  alter(func(c *Config) { c.Spec = w.opts.Spec }),
		"body of another": alter(func(c *Config) { c.Sealed.Body = append([]byte(nil), c.Sealed.Body[1:]...) }),
	} {
		s, err := OpenWith(t.Context(), w.st, d, nil, &w.opts.Keys)
		if err == nil {
			t.Errorf("%s: opened %v", name, s.Digest)
		}
		if !errdefs.IsDataLoss(err) && !errdefs.IsInvalidArgument(err) && !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// State and index swapped: each is sealed as what it is.
	swapped := w.alterManifest(t, receipt.Digest, func(state, index *digest.Digest, stateSize, indexSize *int64) {
		*state, *index, *stateSize, *indexSize = *index, *state, *indexSize, *stateSize
	})
	if _, err := OpenWith(t.Context(), w.st, swapped, nil, &w.opts.Keys); !errdefs.IsDataLoss(err) {
		t.Errorf("swapped: %v", err)
	}
	s, err := OpenWith(t.Context(), w.st, receipt.Digest, nil, &w.opts.Keys)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.State(t.Context(), io.Discard); err != nil {
		t.Error(err)
	}
}

// replaceConfig stores another config and a manifest with it.
func (w *world) replaceConfig(t *testing.T, of digest.Digest, c *Config) digest.Digest {
	t.Helper()
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	m := w.manifest(t, of)
	m.Config.Digest, m.Config.Size = w.store(t, data), int64(len(data))
	return w.storeManifest(t, m)
}

func (w *world) alterManifest(t *testing.T, of digest.Digest, change func(state, index *digest.Digest, stateSize,
	indexSize *int64)) digest.Digest {
	t.Helper()
	m := w.manifest(t, of)
	change(&m.Layers[0].Digest, &m.Layers[1].Digest, &m.Layers[0].Size, &m.Layers[1].Size)
	return w.storeManifest(t, m)
}

func (w *world) store(t *testing.T, data []byte) digest.Digest {
	t.Helper()
	c := store.Bytes(data, digest.FromBytes(data))
	if err := w.st.Put(t.Context(), store.Blob(c.Digest), c); err != nil {
		t.Fatal(err)
	}
	return c.Digest
}

func (w *world) storeManifest(t *testing.T, m v1.Manifest) digest.Digest {
	t.Helper()
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return w.store(t, data)
}

// What opens is whole: a body that names keys it does not have is refused.
func FuzzSealedBody(f *testing.F) {
	key := seal.NewKey()
	ref := testRef()
	f.Add([]byte(`{"ref":{"vm":"default/vm1","uid":"uid1","operation":"op1","attempt":1,"generation":3},`+
		`"spec":{"version":1},"keys":[],"packs":[0,0]}`), uint8(2))
	f.Add([]byte(`{"packs":[1,-1]}`), uint8(2))
	f.Fuzz(func(t *testing.T, plain []byte, packs uint8) {
		locks := seal.Locks{Keys: []seal.Secret{secret(1)}}
		locked, err := locks.Lock(key)
		if err != nil {
			t.Fatal(err)
		}
		body, err := key.Seal(nil, plain, aboutConfig)
		if err != nil {
			t.Fatal(err)
		}
		c := &Config{Ref: ref, Sealed: &Sealed{Locks: locked, Body: body}}
		own, opened, err := c.unseal(&locks)
		if err != nil {
			return
		}
		keys, err := opened.packKeys(own, int(packs))
		if err != nil {
			return
		}
		for i, k := range keys {
			if k == nil {
				t.Fatalf("pack %d without a key", i)
			}
		}
	})
}
