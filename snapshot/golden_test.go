package snapshot

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot/seal"
)

var update = flag.Bool("update", false, "write golden files")

// The manifest and the config of version 1, once for all: these files never change.
func TestGoldenManifest(t *testing.T) {
	w := newWorld(t, 1)
	c := &Config{
		Version: 1, Ref: w.opts.Ref, Created: time.Unix(1_700_000_000, 0).UTC(),
		Facts: Facts{VMM: "qemu", Version: "7.2.0", Machine: "pc-q35-7.2", Accel: "kvm", CPU: "host",
			Features: []string{"avx2"}, Kernel: "6.18.0"},
		Spec:    w.opts.Spec,
		Resume:  json.RawMessage(`{"offset":7}`),
		Spaces:  []SpaceInfo{{Name: "ram0", Size: ramSize}, {Name: "disk0", Disk: "rw", Size: 1<<20 + 512}},
		Disks:   []DiskInfo{{ID: "layer0", Digest: w.src.Disks[0].Digest, Size: 300_000}},
		Figures: Figures{RAM: ramSize, Resident: 8192, New: 4096},
	}
	config, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	desc := func(mediaType, text string) v1.Descriptor {
		return v1.Descriptor{MediaType: mediaType, Digest: digest.FromString(text), Size: int64(len(text))}
	}
	manifest, err := newManifest(c.Ref, desc(MediaTypeConfig, "config"), []v1.Descriptor{
		desc(MediaTypeState, "state"), desc(MediaTypeIndex, "index"), desc(MediaTypePack, "pack"),
		desc(MediaTypeDisk, "disk"),
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][]byte{"config-v1.json": config, "manifest-v1.json": manifest} {
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, append(got, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), string(got)+"\n"); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	if back, _, _, err := parseConfig(config, &seal.Locks{}); err != nil || cmp.Diff(c.Spec, back.Spec) != "" {
		t.Errorf("config does not come back: %v", err)
	}
	parts, err := parseManifest(manifest)
	if err != nil || parts.ref != c.Ref || len(parts.packs) != 1 || len(parts.disks) != 1 {
		t.Errorf("manifest does not come back: %+v, %v", parts, err)
	}
}

// What parses has the right kinds, bounded sizes and sha256 digests.
func FuzzManifest(f *testing.F) {
	data, err := os.ReadFile("testdata/manifest-v1.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	for _, more := range [][]v1.Descriptor{
		nil, {blobOf(MediaTypePack, "a", 16<<20), blobOf(MediaTypePack, "b", 1)},
		{blobOf(MediaTypePack, "c", 64<<20), blobOf(MediaTypeDisk, "d", 1<<30), blobOf(MediaTypeDisk, "e", 4096)},
	} {
		layers := append([]v1.Descriptor{blobOf(MediaTypeState, "state", 5000), blobOf(MediaTypeIndex, "index", 400)},
			more...)
		data, err := newManifest(testRef(), blobOf(MediaTypeConfig, "config", 300), layers)
		if err == nil {
			_, err = parseManifest(data)
		}
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		parts, err := parseManifest(data)
		if err != nil {
			return
		}
		if parts.ref.Validate() != nil || parts.check() != nil || parts.size() > 1<<53 {
			t.Fatalf("%+v", parts)
		}
	})
}

func FuzzConfig(f *testing.F) {
	data, err := os.ReadFile("testdata/config-v1.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		c, _, _, err := parseConfig(data, &seal.Locks{})
		if err == nil && c.validate() != nil {
			t.Fatalf("%+v", c)
		}
	})
}
