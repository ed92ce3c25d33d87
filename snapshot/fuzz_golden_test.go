package snapshot

import (
	"encoding/json"
	"strings"
	"testing"

	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/store"
)

var fuzzGolden = GoldenInfo{Image: digest.FromString("image"), Name: "web:1", VMM: "qemu",
	Kernel: digest.FromString("kernel").String(), Memory: 1 << 30, VCPUs: 2}

func fuzzPush(key *seal.Key) *push {
	p := &push{o: Options{Make: &fuzzGolden}, config: &Config{Spaces: []SpaceInfo{{Name: "ram0", Size: 1 << 20}}},
		key: key}
	p.o.Keys.Locks = seal.Locks{Keys: []seal.Secret{secret(1)}}
	return p
}

func blobOf(mediaType, text string, size int64) v1.Descriptor {
	return v1.Descriptor{MediaType: mediaType, Digest: digest.FromString(text), Size: size}
}

// Manifests of golden snapshots: what is taken for one names parts of their types, within
// the bounds of the format.
func FuzzGoldenManifest(f *testing.F) {
	p := fuzzPush(nil)
	for _, layers := range [][]v1.Descriptor{
		{blobOf(MediaTypeIndex, "index", 400)},
		{blobOf(MediaTypeIndex, "index", 400), blobOf(MediaTypePack, "a", 16<<20), blobOf(MediaTypePack, "b", 5000),
			blobOf(MediaTypeDisk, "d", 1<<20)},
	} {
		data, err := p.goldenManifest(blobOf("", "config", 300), layers)
		if err != nil {
			f.Fatal(err)
		}
		if _, err := parseGolden(data); err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, listed := entryOf(data)
		parts, err := parseGolden(data)
		if (err == nil) != (listed == nil) {
			t.Fatalf("opened %v, listed %v", err, listed)
		}
		if err != nil {
			return
		}
		if parts.config.Size > maxConfig || parts.index.Size > maxIndex || parts.index.MediaType != MediaTypeIndex ||
			parts.size() > 1<<60 || e.Size < parts.size() {
			t.Fatalf("%+v", parts)
		}
		for _, d := range parts.packs {
			if d.MediaType != MediaTypePack || d.Size < 0 || d.Size > format.MaxPack || store.CheckDigest(d.Digest) != nil {
				t.Fatalf("%+v", d)
			}
		}
		for _, d := range parts.disks {
			if d.MediaType != MediaTypeDisk || d.Size < 0 || store.CheckDigest(d.Digest) != nil {
				t.Fatalf("%+v", d)
			}
		}
	})
}

// Configs of golden snapshots: a key comes of one alone that has been sealed with it, for the
// image that it names.
func FuzzGoldenConfig(f *testing.F) {
	for _, key := range []*seal.Key{nil, seal.NewKey()} {
		data, err := fuzzPush(key).encodeGolden()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	locks := &seal.Locks{Keys: []seal.Secret{secret(1)}}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := new(goldenConfig)
		if decodeStrict(data, "golden config", c) != nil {
			return
		}
		key, err := c.unseal(locks)
		if err != nil {
			return
		}
		if key != nil && c.Golden != fuzzGolden {
			t.Fatalf("%+v is opened", c.Golden)
		}
		if c.Golden.validate() == nil && Nearest([]string{c.Golden.Tag()}, c.Golden) != c.Golden.Tag() {
			t.Fatalf("%+v is not found by its tag %s", c.Golden, c.Golden.Tag())
		}
	})
}

// What a tag names: a hold, a snapshot, or something else, of which no sizes and no names are
// believed that cannot be.
func FuzzHold(f *testing.F) {
	h, err := json.Marshal(v1.Manifest{
		Versioned: versioned, MediaType: v1.MediaTypeImageManifest, ArtifactType: HoldType,
		Annotations: testRef().annotations(),
		Config:      v1.DescriptorEmptyJSON, Layers: []v1.Descriptor{blobOf(MediaTypePack, "a", 16<<20),
			blobOf(MediaTypePack, "b", 1)},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(h)
	f.Add([]byte(strings.ReplaceAll(string(h), HoldType, ArtifactType)))
	f.Fuzz(func(t *testing.T, data []byte) {
		l := Listed{}
		if !l.readHold(data) {
			return
		}
		if l.Err == nil && l.Ref.Validate() != nil {
			t.Fatalf("%+v", l.Ref)
		}
		if l.Err == nil && l.Ref.HoldTag() == l.Ref.Tag() {
			t.Fatalf("%+v has the tag of a snapshot", l.Ref)
		}
	})
}
