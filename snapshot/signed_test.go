package snapshot

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot/sign"
	"godwit.dev/godwit/snapshot/store"
)

// keyFiles writes a key as openssl does, and its public half.
func keyFiles(t *testing.T, key crypto.Signer) (private, public string) {
	t.Helper()
	dir := t.TempDir()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	private, public = filepath.Join(dir, "key.pem"), filepath.Join(dir, "pub.pem")
	for path, b := range map[string]*pem.Block{private: {Type: "PRIVATE KEY", Bytes: der},
		public: {Type: "PUBLIC KEY", Bytes: pub}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return private, public
}

func newECDSA(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newEd25519(t *testing.T) crypto.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func trust(t *testing.T, c sign.Config) sign.Trust {
	t.Helper()
	tr, err := sign.Load(c)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// With signing required, a snapshot that no trusted key has signed is refused by name. A snapshot that a trusted
// key signed is restored, also after it was copied elsewhere.
func TestSigned(t *testing.T) {
	for name, key := range map[string]crypto.Signer{"ecdsa": newECDSA(t), "ed25519": newEd25519(t)} {
		w := newWorld(t, 41)
		private, public := keyFiles(t, key)
		_, other := keyFiles(t, newECDSA(t))
		w.opts.Keys.Trust = trust(t, sign.Config{KeyFile: private})
		receipt, err := Push(t.Context(), w.st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		w.opts.Keys.Trust = trust(t, sign.Config{Trusted: []string{other, public}, Required: true})
		s := w.restore(t, receipt.Digest).snap
		stranger := &Keys{Trust: trust(t, sign.Config{Trusted: []string{other}, Required: true})}
		if _, err := OpenWith(t.Context(), w.st, receipt.Digest, nil, stranger); !errdefs.IsPermissionDenied(err) ||
			!strings.Contains(err.Error(), "sign.trusted") {
			t.Errorf("%s: a key that is not trusted: %v", name, err)
		}
		there := newWorld(t, 42)
		if _, err := s.Copy(t.Context(), there.st, CopyOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenWith(t.Context(), there.st, receipt.Digest, nil, &w.opts.Keys); err != nil {
			t.Errorf("%s: its copy: %v", name, err)
		}
		if err := Drop(t.Context(), w.st, receipt.Digest, receipt.Tag, "uid1"); err != nil {
			t.Fatal(err)
		}
		if tags, err := w.st.Tags(t.Context()); err != nil || len(tags) != 0 {
			t.Errorf("%s: tags %q after the snapshot was deleted, %v", name, tags, err)
		}
	}
}

// What lies where a signature is looked for and is none is refused, and nothing of the
// snapshot itself is read for it.
func TestSignatureThatIsNone(t *testing.T) {
	w := newWorld(t, 43)
	private, public := keyFiles(t, newECDSA(t))
	w.opts.Keys.Trust = trust(t, sign.Config{KeyFile: private})
	first, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	w.opts.Keys.Trust = sign.Trust{}
	w.opts.Ref.Generation++
	second, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	signature := func(d digest.Digest) v1.Manifest {
		data, err := store.Read(t.Context(), w.st, store.Manifest(SignatureTag(d)), maxManifest)
		if err != nil {
			t.Fatal(err)
		}
		var m v1.Manifest
		if err := json.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	good := signature(first.Digest)
	change := func(do func(*v1.Manifest)) func() []byte {
		return func() []byte {
			m := good
			m.Layers = append([]v1.Descriptor(nil), good.Layers...)
			m.Layers[0].Annotations = map[string]string{annotationSignature: good.Layers[0].Annotations[annotationSignature]}
			do(&m)
			data, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
	}
	keys := &Keys{Trust: trust(t, sign.Config{Trusted: []string{public}, Required: true})}
	for name, data := range map[string]func() []byte{
		"none":                   nil,
		"of another snapshot":    change(func(*v1.Manifest) {}),
		"no layers":              change(func(m *v1.Manifest) { m.Layers = nil }),
		"too many":               change(func(m *v1.Manifest) { m.Layers = make([]v1.Descriptor, maxSignatures+1) }),
		"huge text":              change(func(m *v1.Manifest) { m.Layers[0].Size = 1 << 40 }),
		"text that is not there": change(func(m *v1.Manifest) { m.Layers[0].Digest = digest.FromString("x") }),
		"no base64":              change(func(m *v1.Manifest) { m.Layers[0].Annotations[annotationSignature] = "!" }),
		"no signature":           change(func(m *v1.Manifest) { m.Layers[0].Annotations = nil }),
		"no JSON":                func() []byte { return []byte("x") },
	} {
		if data != nil {
			c := store.Bytes(data(), digest.FromBytes(data()))
			c.MediaType = v1.MediaTypeImageManifest
			if err := w.st.Put(t.Context(), store.Manifest(SignatureTag(second.Digest)), c); err != nil {
				t.Logf("%s: the store refuses it: %v", name, err)
				continue
			}
		}
		st := &reads{Store: w.st, manifest: second.Digest.String()}
		if _, err := OpenWith(t.Context(), st, second.Digest, nil, keys); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", name, err)
		}
		if st.read {
			t.Errorf("%s: the manifest was read before its signature", name)
		}
	}
}

// reads notices a read of a manifest.
type reads struct {
	store.Store
	manifest string
	read     bool
}

func (r *reads) Get(ctx context.Context, o store.Object) (io.ReadCloser, error) {
	if o == store.Manifest(r.manifest) {
		r.read = true
	}
	return r.Store.Get(ctx, o)
}

func TestSignLoad(t *testing.T) {
	private, public := keyFiles(t, newECDSA(t))
	open := filepath.Join(t.TempDir(), "open.pem")
	data, err := os.ReadFile(private)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(open, data, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config sign.Config
		class  func(error) bool
		text   string
	}{
		"no file":                {sign.Config{KeyFile: open + "x"}, errdefs.IsFailedPrecondition, "sign.key_file"},
		"open to others":         {sign.Config{KeyFile: open}, errdefs.IsFailedPrecondition, "chmod 600"},
		"public as private":      {sign.Config{KeyFile: public}, errdefs.IsInvalidArgument, "PRIVATE KEY"},
		"private as public":      {sign.Config{Trusted: []string{private}}, errdefs.IsInvalidArgument, "PUBLIC KEY"},
		"required without a key": {sign.Config{Required: true}, errdefs.IsInvalidArgument, "sign.trusted"},
	} {
		if _, err := sign.Load(c.config); !c.class(err) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
