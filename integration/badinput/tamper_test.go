//go:build integration

package badinput

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/integration/harness"
)

// damaged: what the registry keeps is not what it was given. The digests say so.
func damaged(t *testing.T, g *guest, good string) {
	m := g.manifest(t, good)
	index, pack := m.Layers[1].Digest.String(), m.Layers[2].Digest.String()
	for _, c := range []struct {
		name, blob string
		change     func(data []byte) []byte
		words      []string
	}{
		{"corrupted pack", pack, func(d []byte) []byte { d[len(d)/2] ^= 1; return d }, []string{"pack", pack}},
		{"pack gone", pack, func([]byte) []byte { return nil }, []string{"pack", pack, "missing"}},
		{"truncated index", index, func(d []byte) []byte { return d[:len(d)/2] }, []string{"index", index}},
		{"corrupted manifest", good, func(d []byte) []byte { d[len(d)/2] ^= 1; return d }, []string{good}},
	} {
		t.Run(c.name, func(t *testing.T) {
			undo := replace(t, g.Blob(c.blob), c.change)
			got := godwitFails(t, g.Node(1), "wake", g.id)
			verdict := godwitFails(t, g.Node(1), "snapshot", "verify", good)
			undo()
			got.want(t, "DataLoss", append(c.words, good, g.id)...)
			verdict.want(t, "DataLoss", good)
			g.sleepsStill(t, good)
		})
	}
	if out, err := g.Node(1).RunGodwit(t.Context(), "snapshot", "verify", good); err != nil ||
		!strings.Contains(out, "frames") {
		t.Errorf("verify the whole snapshot: %v: %s", err, out)
	}
}

// replace changes a file, or removes it where change answers nothing, until undo.
func replace(t *testing.T, path string, change func([]byte) []byte) (undo func()) {
	t.Helper()
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if data := change(append([]byte{}, old...)); data == nil {
		err = os.Remove(path)
	} else {
		err = os.WriteFile(path, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.WriteFile(path, old, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// altered: a whole snapshot with digests that fit, made by somebody else or by a later
// godwit, and woken by force.
func altered(t *testing.T, g *guest, good string) {
	for _, c := range []struct {
		name   string
		change func(t *testing.T, g *guest, m *v1.Manifest)
		class  string
		words  []string
	}{
		{"path in a disk name", config(func(c map[string]any) { rename(c, "rw", "../../etc/shadow") }),
			"InvalidArgument", []string{"disk", "../../etc/shadow"}},
		{"newer snapshot", func(_ *testing.T, _ *guest, m *v1.Manifest) {
			m.ArtifactType = "application/vnd.godwit.snapshot.v2"
		}, "NotImplemented", []string{"artifactType", "snapshot.v2", "snapshot.v1"}},
		{"newer config", config(func(c map[string]any) { c["version"] = 2 }), "NotImplemented", []string{"config version 2"}},
		{"newer index", newerIndex, "NotImplemented", []string{"index", "version 2"}},
		{"unknown field", config(func(c map[string]any) {
			c["devices"] = []string{}
		}), "InvalidArgument", []string{"config", "devices"}},
		{"of another VM", func(t *testing.T, g *guest, m *v1.Manifest) {
			config(func(c map[string]any) {
				c["ref"].(map[string]any)["uid"], c["spec"].(map[string]any)["uid"] = "another", "another"
			})(t, g, m)
			m.Annotations["dev.godwit.uid"] = "another"
		}, "FailedPrecondition", []string{"uid", "another"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := g.manifest(t, good)
			c.change(t, g, m)
			data, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			digest := g.plant(t, data, true)
			godwitFails(t, g.Node(1), "wake", "--on", "b", "--force", "--digest", digest, g.id).want(t, c.class,
				append(c.words, digest, g.id)...)
			g.sleepsStill(t, good)
		})
	}
}

// rename replaces a string wherever it stands in a JSON document.
func rename(doc any, from, to string) any {
	switch v := doc.(type) {
	case map[string]any:
		for key := range v {
			v[key] = rename(v[key], from, to)
		}
	case []any:
		for i := range v {
			v[i] = rename(v[i], from, to)
		}
	case string:
		if v == from {
			return to
		}
	}
	return doc
}

// manifest reads the manifest of a snapshot from the registry's files.
func (g *guest) manifest(t *testing.T, digest string) *v1.Manifest {
	t.Helper()
	m := new(v1.Manifest)
	if err := json.Unmarshal(g.blob(t, digest), m); err != nil {
		t.Fatal(err)
	}
	return m
}

func (g *guest) blob(t *testing.T, digest string) []byte {
	t.Helper()
	data, err := os.ReadFile(g.Blob(digest))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// plant puts a blob or a manifest into the VM's repository.
func (g *guest) plant(t *testing.T, data []byte, manifest bool) string {
	t.Helper()
	v, _ := look(t, g.Node(0), g.id)
	d := digest.FromBytes(data).String()
	if err := g.Plant(harness.Repository+"/"+v.UID, d, data, manifest); err != nil {
		t.Fatal(err)
	}
	return d
}

// config alters the snapshot's config.
func config(change func(map[string]any)) func(*testing.T, *guest, *v1.Manifest) {
	return func(t *testing.T, g *guest, m *v1.Manifest) {
		t.Helper()
		var c map[string]any
		if err := json.Unmarshal(g.blob(t, m.Config.Digest.String()), &c); err != nil {
			t.Fatal(err)
		}
		change(c)
		data, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		m.Config.Digest, m.Config.Size = digest.Digest(g.plant(t, data, false)), int64(len(data))
	}
}

func newerIndex(t *testing.T, g *guest, m *v1.Manifest) {
	t.Helper()
	layer := &m.Layers[1]
	dec, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	data, err := dec.DecodeAll(g.blob(t, layer.Digest.String()), nil)
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint16(data[8:], 2)
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	data = enc.EncodeAll(data, nil)
	layer.Digest, layer.Size = digest.Digest(g.plant(t, data, false)), int64(len(data))
}
