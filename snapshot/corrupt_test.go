package snapshot

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/precopy"
	"godwit.dev/godwit/snapshot/store"
)

func (w *world) blob(d digest.Digest) string {
	return filepath.Join(w.dir, "blobs", "sha256", d.Encoded())
}

func (w *world) manifest(t *testing.T, d digest.Digest) v1.Manifest {
	t.Helper()
	data, err := os.ReadFile(w.blob(d))
	if err != nil {
		t.Fatal(err)
	}
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func (w *world) restoreAll(t *testing.T, d digest.Digest) (ram *os.File, err error) {
	s, err := Open(t.Context(), w.st, d, nil)
	if err != nil {
		return nil, err
	}
	if err := s.State(t.Context(), io.Discard); err != nil {
		return nil, err
	}
	if err := s.Disk(t.Context(), w.src.Disks[0].Digest, io.Discard); err != nil {
		return nil, err
	}
	ram = emptyFile(t, "ram")
	return ram, s.Fill(t.Context(), map[string]*os.File{"ram0": ram, "disk0": emptyFile(t, "disk")}, FillOptions{})
}

// A blob that is corrupt, short, long or gone is DataLoss that names it.
func TestCorruptBlob(t *testing.T) {
	w := newWorld(t, 4)
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	m := w.manifest(t, receipt.Digest)
	blobs := map[string]digest.Digest{
		"manifest": receipt.Digest, "config": m.Config.Digest, "state": m.Layers[0].Digest,
		"index": m.Layers[1].Digest, "pack": m.Layers[2].Digest, "disk": m.Layers[len(m.Layers)-1].Digest,
	}
	harm := map[string]func([]byte) []byte{
		"corrupt": func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"short":   func(b []byte) []byte { return b[:len(b)-1] },
		"long":    func(b []byte) []byte { return append(b, 0) },
		"empty":   func([]byte) []byte { return nil },
	}
	for kind, d := range blobs {
		whole, err := os.ReadFile(w.blob(d))
		if err != nil {
			t.Fatal(err)
		}
		for how, do := range harm {
			if err := os.WriteFile(w.blob(d), do(append([]byte(nil), whole...)), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := w.restoreAll(t, receipt.Digest); !errdefs.IsDataLoss(err) ||
				!strings.Contains(err.Error(), d.String()) {
				t.Errorf("%s %s: %v, want DataLoss that names %s", how, kind, err, d)
			}
		}
		if err := os.Remove(w.blob(d)); err != nil {
			t.Fatal(err)
		}
		_, err = w.restoreAll(t, receipt.Digest)
		if kind == "manifest" && !errdefs.IsNotFound(err) || kind != "manifest" && !errdefs.IsDataLoss(err) {
			t.Errorf("%s is gone: %v", kind, err)
		}
		if err := os.WriteFile(w.blob(d), whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.restoreAll(t, receipt.Digest); err != nil {
		t.Fatal(err)
	}
}

// A pack whose digest is right and whose frame is not: the frame's own hash holds it
// back, before a byte of it is written.
func TestWrongFrameIsNotWritten(t *testing.T) {
	w := newWorld(t, 5)
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	d := w.alter(t, receipt.Digest, func(_ *v1.Manifest, _ map[string]any, x *format.Index) {
		for i := range x.Frames {
			x.Frames[i].BLAKE3[0] ^= 1
		}
	})
	ram, err := w.restoreAll(t, d)
	if !errdefs.IsDataLoss(err) {
		t.Fatalf("frames with another hash: %v, want DataLoss", err)
	}
	if at, err := precopy.SeekData(ram, 0); err != nil || at != precopy.NoData {
		t.Errorf("a byte was written at %d, %v", at, err)
	}
}

// alter stores a changed copy of a snapshot, consistent in its digests.
func (w *world) alter(t *testing.T, d digest.Digest, change func(*v1.Manifest, map[string]any,
	*format.Index)) digest.Digest {
	t.Helper()
	m := w.manifest(t, d)
	data, err := os.ReadFile(w.blob(m.Config.Digest))
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(data, &config); err != nil {
		t.Fatal(err)
	}
	blob, err := os.ReadFile(w.blob(m.Layers[1].Digest))
	if err != nil {
		t.Fatal(err)
	}
	x, err := format.Decode(blob)
	if err != nil {
		t.Fatal(err)
	}
	change(&m, config, x)
	if blob, err = x.Encode(); err != nil {
		t.Fatal(err)
	}
	if data, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	put := func(o *v1.Descriptor, b []byte) {
		c := store.Bytes(b, digest.FromBytes(b))
		o.Digest, o.Size = c.Digest, c.Size
		if err := w.st.Put(t.Context(), store.Blob(c.Digest), c); err != nil {
			t.Fatal(err)
		}
	}
	put(&m.Config, data)
	put(&m.Layers[1], blob)
	if data, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	var desc v1.Descriptor
	put(&desc, data)
	return desc.Digest
}

// R1: what does not fit is refused by its class, and nothing is
// written for it.
func TestOpenRefuses(t *testing.T) {
	w := newWorld(t, 6)
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	type m = map[string]any
	disks := func(c m) m { return c["spec"].(m)["disks"].([]any)[0].(m) }
	tests := []struct {
		name   string
		change func(*v1.Manifest, m, *format.Index)
		class  func(error) bool
		text   string
	}{
		{"newer artifact", func(m *v1.Manifest, _ m, _ *format.Index) {
			m.ArtifactType = "application/vnd.godwit.snapshot.v2"
		}, errdefs.IsNotImplemented, "artifactType"},
		{"an image", func(m *v1.Manifest, _ m, _ *format.Index) {
			m.ArtifactType = ""
		}, errdefs.IsInvalidArgument, "artifactType"},
		{"an index", func(m *v1.Manifest, _ m, _ *format.Index) {
			m.MediaType = v1.MediaTypeImageIndex
		}, errdefs.IsInvalidArgument, "mediaType"},
		{"pack of another type", func(m *v1.Manifest, _ m, _ *format.Index) {
			m.Layers[2].MediaType = "x"
		}, errdefs.IsInvalidArgument, "mediaType"},
		{"no layers", func(m *v1.Manifest, _ m, _ *format.Index) {
			m.Layers = m.Layers[:2]
		}, errdefs.IsInvalidArgument, "packs"},
		{"negative size", func(m *v1.Manifest, _ m, _ *format.Index) {
			m.Layers[0].Size = -1
		}, errdefs.IsInvalidArgument, "state size"},
		{"huge pack", func(m *v1.Manifest, _ m, _ *format.Index) {
			m.Layers[2].Size = 1 << 40
		}, errdefs.IsInvalidArgument, "size"},
		{"path as digest", func(m *v1.Manifest, _ m, _ *format.Index) {
			m.Layers[2].Digest = "sha256:../../x"
		}, errdefs.IsInvalidArgument, "digest"},
		{"annotations of another VM", func(m *v1.Manifest, _ m, _ *format.Index) {
			m.Annotations[AnnotationVM] = "default/other"
		}, errdefs.IsInvalidArgument, "annotations differ"},
		{"no generation", func(m *v1.Manifest, _ m, _ *format.Index) {
			delete(m.Annotations, AnnotationGeneration)
		}, errdefs.IsInvalidArgument, AnnotationGeneration},
		{"newer config", func(_ *v1.Manifest, c m, _ *format.Index) {
			c["version"] = 2
		}, errdefs.IsNotImplemented, "config version"},
		{"newer spec", func(_ *v1.Manifest, c m, _ *format.Index) {
			c["spec"].(m)["version"] = spec.Version + 1
		}, errdefs.IsNotImplemented, "spec version"},
		{"unknown field of the spec", func(_ *v1.Manifest, c m, _ *format.Index) {
			c["spec"].(m)["gpu"] = "x"
		}, errdefs.IsInvalidArgument, "gpu"},
		{"path as disk", func(_ *v1.Manifest, c m, _ *format.Index) {
			disks(c)["id"] = "../../etc/shadow"
		}, errdefs.IsInvalidArgument, "spec.disks"},
		{"another base image", func(_ *v1.Manifest, c m, _ *format.Index) {
			disks(c)["digest"] = digest.FromString("x").String()
		}, errdefs.IsFailedPrecondition, "digest of disk layer0"},
		{"disk that is not kept", func(_ *v1.Manifest, c m, _ *format.Index) {
			delete(c, "disks")
		}, errdefs.IsInvalidArgument, "layer0"},
		{"space of another size", func(_ *v1.Manifest, _ m, x *format.Index) {
			x.Spaces[0].Size += 4096
		}, errdefs.IsInvalidArgument, "spaces"},
		{"pack of another digest", func(_ *v1.Manifest, _ m, x *format.Index) {
			x.Packs[0].SHA256[0] ^= 1
		}, errdefs.IsInvalidArgument, "packs"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := w.restoreAll(t, w.alter(t, receipt.Digest, tt.change))
			if !tt.class(err) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v", err)
			}
		})
	}
	for field, change := range map[string]func(*Ref){
		"vm": func(r *Ref) { r.VM = "other/vm1" }, "uid": func(r *Ref) { r.UID = "uid2" },
		"generation": func(r *Ref) { r.Generation++ }, "operation": func(r *Ref) { r.Operation = "op0" },
		"attempt": func(r *Ref) { r.Attempt++ },
	} {
		want := w.opts.Ref
		change(&want)
		if _, err := Open(t.Context(), w.st, receipt.Digest, &want); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), field) {
			t.Errorf("another %s: %v, want FailedPrecondition that names it", field, err)
		}
	}
}

// A file that holds data already would keep it where the snapshot has zeros.
func TestFillRefusesUsedFile(t *testing.T) {
	w := newWorld(t, 8)
	_, s := w.stored(t)
	used := blobFile(t, "used", []byte("x"))
	if err := used.Truncate(ramSize); err != nil {
		t.Fatal(err)
	}
	if err := s.Fill(t.Context(), map[string]*os.File{"ram0": used}, FillOptions{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("fill of a used file: %v", err)
	}
	if err := s.Fill(t.Context(), map[string]*os.File{"../x": emptyFile(t, "f")},
		FillOptions{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("fill of an unknown space: %v", err)
	}
}
