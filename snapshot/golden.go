package snapshot

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/restore"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/store"
)

// A golden snapshot holds the pages of a VM that was booted from an image and was ready. No other VM of that image
// has to store them. It keeps the image's read-only disks at hand, too. It is no VM's snapshot: nothing can be
// restored from it, for it has neither device state nor Spec.
const (
	GoldenType      = "application/vnd.godwit.golden.v1"
	MediaTypeGolden = "application/vnd.godwit.golden.config.v1"

	annotationImage     = "dev.godwit.image"
	annotationImageName = "dev.godwit.image.name"
	annotationVMM       = "dev.godwit.vmm"
	annotationKernel    = "dev.godwit.kernel"
	annotationMemory    = "dev.godwit.memory"
	annotationVCPUs     = "dev.godwit.vcpus"
	annotationCreated   = "org.opencontainers.image.created"
)

// GoldenInfo says what the VM of a golden snapshot was. The image is what it is found by;
// the rest tells which of several has most pages in common with a VM.
type GoldenInfo struct {
	Image  digest.Digest `json:"image"`
	Name   string        `json:"name,omitempty"` // of the image, for people
	VMM    string        `json:"vmm"`
	Kernel string        `json:"kernel"` // the guest's, and its initramfs: spec.Kernel.Digest
	Memory uint64        `json:"memory"`
	VCPUs  int           `json:"vcpus"`
}

// goldenConfig is the config blob.
type goldenConfig struct {
	Version int         `json:"version"`
	Golden  GoldenInfo  `json:"golden"`
	Created time.Time   `json:"created"`
	Spaces  []SpaceInfo `json:"spaces"`
	Figures Figures     `json:"figures"`
	Sealed  *Sealed     `json:"sealed,omitempty"`
}

// GoldenRepository is where a node's golden snapshots lie, next to those of its VMs.
func GoldenRepository(prefix string) string { return prefix + "/golden" }

// GoldenOf is GoldenRepository for a VM's repository.
func GoldenOf(repository string) string { return GoldenRepository(path.Dir(repository)) }

const shortKernel = 8 // hex digits

func (g GoldenInfo) kernel() string {
	k := digest.Digest(g.Kernel)
	if k.Validate() != nil {
		return "none"
	}
	return k.Encoded()[:shortKernel]
}

// Tag tells image and shape: a search for one reads the names of tags alone.
func (g GoldenInfo) Tag() string {
	return fmt.Sprintf("%s-%s-%s-%dm-%dc", g.Image.Encoded(), g.VMM, g.kernel(), g.Memory>>20, g.VCPUs)
}

// goldenTag is compiled when it is needed: with its bounds it is large.
var goldenTag = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([0-9a-f]{64})-([a-z-]{1,32})-([0-9a-f]{8}|none)-([0-9]{1,9})m-([0-9]{1,3})c$`)
})

// Nearest returns the tag of the golden snapshot of an image that has most in common with
// a VM; empty: there is none of that image. What is not alike costs bytes, no more.
func Nearest(tags []string, vm GoldenInfo) (best string) {
	most := -1
	for _, tag := range tags {
		m := goldenTag().FindStringSubmatch(tag)
		if m == nil || m[1] != vm.Image.Encoded() {
			continue
		}
		points := 0
		if m[3] == vm.kernel() {
			points += 8
		}
		if m[2] == vm.VMM {
			points += 4
		}
		if m[4] == strconv.FormatUint(vm.Memory>>20, 10) {
			points += 2
		}
		if m[5] == strconv.Itoa(vm.VCPUs) {
			points++
		}
		if points > most || points == most && tag < best {
			best, most = tag, points
		}
	}
	return best
}

func (g GoldenInfo) validate() error {
	if err := store.CheckDigest(g.Image); err != nil {
		return fmt.Errorf("snapshot: golden image: %w", err)
	}
	if !goldenTag().MatchString(g.Tag()) {
		return invalid("golden", "tag %q", g.Tag())
	}
	return nil
}

func (g GoldenInfo) annotations(created time.Time) map[string]string {
	return map[string]string{
		annotationImage: g.Image.String(), annotationImageName: g.Name, annotationVMM: g.VMM, annotationKernel: g.Kernel,
		annotationMemory: strconv.FormatUint(g.Memory, 10), annotationVCPUs: strconv.Itoa(g.VCPUs),
		annotationCreated: created.Format(time.RFC3339),
	}
}

// encodeGolden returns the config blob. Of a sealed one the index alone says where pages
// are, and it is sealed.
func (p *push) encodeGolden() ([]byte, error) {
	c := goldenConfig{Version: ConfigVersion, Golden: *p.o.Make, Created: p.config.Created, Figures: p.config.Figures}
	for _, s := range p.config.Spaces {
		c.Spaces = append(c.Spaces, SpaceInfo{Name: s.Name, Size: s.Size})
	}
	if p.key != nil {
		about, err := json.Marshal(c.Golden)
		if err != nil {
			return nil, fmt.Errorf("config: %w", err)
		}
		c.Sealed = new(Sealed)
		if c.Sealed.Body, err = p.key.Seal(nil, about, aboutConfig); err != nil {
			return nil, err
		}
		if c.Sealed.Locks, err = p.o.Keys.Locks.Lock(p.key); err != nil {
			return nil, err
		}
	}
	data, err := json.Marshal(&c)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return data, nil
}

func (p *push) goldenManifest(config v1.Descriptor, layers []v1.Descriptor) ([]byte, error) {
	config.MediaType = MediaTypeGolden
	return json.Marshal(v1.Manifest{
		Versioned: versioned, MediaType: v1.MediaTypeImageManifest, ArtifactType: GoldenType,
		Config: config, Layers: layers, Annotations: p.o.Make.annotations(p.config.Created),
	})
}

// Golden is a golden snapshot that has been opened.
type Golden struct {
	Info    GoldenInfo
	Created time.Time
	Figures Figures

	pages *Snapshot // its index, packs and keys; it has no config
}

// OpenGolden reads one as OpenWith does: one that is sealed for others is FailedPrecondition, one that no trusted
// key has signed PermissionDenied.
func OpenGolden(ctx context.Context, st store.Store, d digest.Digest, keys *Keys) (*Golden, error) {
	g, err := openGolden(ctx, st, d, keys)
	if err != nil {
		return nil, fmt.Errorf("open golden snapshot %s: %w", d, err)
	}
	return g, nil
}

func openGolden(ctx context.Context, st store.Store, d digest.Digest, keys *Keys) (*Golden, error) {
	if err := store.CheckDigest(d); err != nil {
		return nil, err
	}
	if err := checkSignature(ctx, st, &keys.Trust, d); err != nil {
		return nil, err
	}
	data, err := store.Read(ctx, st, store.Manifest(d.String()), maxManifest)
	if err != nil {
		return nil, err
	}
	parts, err := parseGolden(data)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Digest: d, store: st, parts: parts, keys: make([]*seal.Key, len(parts.packs))}
	if data, err = s.read(ctx, "config", parts.config); err != nil {
		return nil, err
	}
	c := new(goldenConfig)
	if err := decodeStrict(data, "golden config", c); err != nil {
		return nil, err
	}
	if c.Version != ConfigVersion {
		return nil, fmt.Errorf("snapshot: golden config version %d, this build reads %d: %w", c.Version, ConfigVersion,
			errdefs.ErrNotImplemented)
	}
	if s.key, err = c.unseal(&keys.Locks); err != nil {
		return nil, err
	}
	for i := range s.keys {
		s.keys[i] = s.key
	}
	if err := s.readIndex(ctx, parts.index); err != nil {
		return nil, err
	}
	g := &Golden{Info: c.Golden, Created: c.Created, Figures: c.Figures, pages: s}
	return g, errorsOf(c.Golden.validate(), s.checkPacks())
}

// errorsOf returns the first error.
func errorsOf(list ...error) error {
	for _, err := range list {
		if err != nil {
			return err
		}
	}
	return nil
}

func parseGolden(data []byte) (*contents, error) {
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, invalid("manifest", "%v", err)
	}
	if m.MediaType != v1.MediaTypeImageManifest || m.ArtifactType != GoldenType || len(m.Layers) < 1 ||
		len(m.Layers) > format.MaxPacks {
		return nil, invalid("golden manifest", "type %q, %d layers", m.ArtifactType, len(m.Layers))
	}
	c := &contents{config: m.Config, index: m.Layers[0], packs: m.Layers[1:]}
	if n := slices.IndexFunc(c.packs, func(d v1.Descriptor) bool { return d.MediaType != MediaTypePack }); n >= 0 {
		c.packs, c.disks = c.packs[:n], c.packs[n:]
	}
	err := errorsOf(checkPart("config", c.config, MediaTypeGolden, maxConfig),
		checkPart("index", c.index, MediaTypeIndex, maxIndex))
	for i, d := range c.packs {
		err = errorsOf(err, checkPart(fmt.Sprintf("pack %d", i), d, MediaTypePack, format.MaxPack))
	}
	for i, d := range c.disks {
		err = errorsOf(err, checkPart(fmt.Sprintf("disk %d", i), d, MediaTypeDisk, format.MaxSpace))
	}
	return c, err
}

// unseal returns the key, nil for one that is not sealed.
func (c *goldenConfig) unseal(locks *seal.Locks) (*seal.Key, error) {
	if c.Sealed == nil {
		if locks.Required {
			return nil, fmt.Errorf("golden snapshot is not sealed, and this node takes sealed ones only (seal.required): %w",
				errdefs.ErrPermissionDenied)
		}
		return nil, nil
	}
	key, err := locks.Unlock(c.Sealed.Locks)
	if err != nil {
		return nil, err
	}
	plain, err := key.Open(nil, c.Sealed.Body, aboutConfig)
	if err != nil {
		return nil, err
	}
	var about GoldenInfo
	if err := decodeStrict(plain, "sealed body", &about); err != nil {
		return nil, err
	}
	if about != c.Golden {
		return nil, invalid("sealed body", "of image %s, in that of %s", about.Image, c.Golden.Image)
	}
	return key, nil
}

// Table reads all of its pages and writes their table, for pushes. No table comes with a golden snapshot: what
// counts as equal is decided by bytes that this node has read and hashed with a key of its own. Neither a guest nor
// a writer of the store can have a page stand for another.
func (g *Golden) Table(ctx context.Context, f *os.File, o FillOptions) error {
	o.Table = f
	if err := restore.Read(ctx, g.pages.source(), o.restore()); err != nil {
		return fmt.Errorf("read golden snapshot %s: %w", g.pages.Digest, err)
	}
	return nil
}

// GoldenEntry is one of a repository.
type GoldenEntry struct {
	Tag     string
	Digest  digest.Digest
	Info    GoldenInfo
	Created time.Time
	Size    uint64 // of all blobs that its manifest lists
}

// ListGolden reads the manifest of each tag; what is no golden snapshot is left out.
func ListGolden(ctx context.Context, st store.Store) (list []GoldenEntry, err error) {
	tags, err := st.Tags(ctx)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list golden snapshots: %w", err)
	}
	for _, tag := range tags {
		if !goldenTag().MatchString(tag) {
			continue
		}
		data, err := store.Read(ctx, st, store.Manifest(tag), maxManifest)
		if errdefs.IsNotFound(err) {
			continue // deleted since
		}
		if err != nil {
			return nil, fmt.Errorf("list golden snapshots: %w", err)
		}
		e, err := entryOf(data)
		if err != nil {
			continue
		}
		e.Tag = tag
		list = append(list, e)
	}
	return list, nil
}

func entryOf(data []byte) (e GoldenEntry, err error) {
	parts, err := parseGolden(data)
	if err != nil {
		return e, err
	}
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return e, invalid("manifest", "%v", err)
	}
	a := m.Annotations
	e.Digest, e.Size = digest.FromBytes(data), uint64(len(data))+parts.size()
	e.Info = GoldenInfo{Image: digest.Digest(a[annotationImage]), Name: a[annotationImageName], VMM: a[annotationVMM],
		Kernel: a[annotationKernel]}
	// What is not a number is shown as none.
	e.Info.Memory, _ = strconv.ParseUint(a[annotationMemory], 10, 64)
	e.Info.VCPUs, _ = strconv.Atoi(a[annotationVCPUs])
	e.Created, _ = time.Parse(time.RFC3339, a[annotationCreated])
	return e, nil
}
