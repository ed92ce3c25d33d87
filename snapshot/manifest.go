package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/store"
)

// annotations of a manifest, which say again what the config says: who looks for a
// snapshot need not read it.
func (r Ref) annotations() map[string]string {
	return map[string]string{
		AnnotationVM: r.VM, AnnotationUID: r.UID, AnnotationOperation: r.Operation,
		AnnotationGeneration: strconv.FormatUint(r.Generation, 10),
		AnnotationAttempt:    strconv.FormatUint(uint64(r.Attempt), 10),
	}
}

func newManifest(ref Ref, config v1.Descriptor, layers []v1.Descriptor) ([]byte, error) {
	return json.Marshal(v1.Manifest{
		Versioned: ocispecs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		ArtifactType: ArtifactType, Config: config, Layers: layers, Annotations: ref.annotations(),
	})
}

// contents is a manifest taken apart.
type contents struct {
	ref    Ref
	config v1.Descriptor
	state  v1.Descriptor
	index  v1.Descriptor
	packs  []v1.Descriptor
	disks  []v1.Descriptor
}

// parseManifest accepts a manifest of this format and nothing else.
func parseManifest(data []byte) (*contents, error) {
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, invalid("manifest", "%v", err)
	}
	switch {
	case m.MediaType != v1.MediaTypeImageManifest:
		return nil, invalid("manifest mediaType", "%q", m.MediaType)
	case m.ArtifactType != ArtifactType && newerType.MatchString(m.ArtifactType):
		return nil, fmt.Errorf("snapshot: artifactType %q, this build reads %q: %w", m.ArtifactType, ArtifactType,
			errdefs.ErrNotImplemented)
	case m.ArtifactType != ArtifactType:
		return nil, invalid("artifactType", "%q", m.ArtifactType)
	case len(m.Layers) < 2:
		return nil, invalid("layers", "%d", len(m.Layers))
	}
	ref, err := parseRef(m.Annotations)
	if err != nil {
		return nil, err
	}
	c := &contents{ref: ref, config: m.Config, state: m.Layers[0], index: m.Layers[1]}
	rest := m.Layers[2:]
	n := 0
	for n < len(rest) && rest[n].MediaType == MediaTypePack {
		n++
	}
	c.packs, c.disks = rest[:n], rest[n:]
	return c, c.check()
}

var newerType = regexp.MustCompile(`^application/vnd\.godwit\.snapshot\.v[0-9]+$`)

func (c *contents) check() error {
	if len(c.packs) > format.MaxPacks || len(c.disks) > maxDisks {
		return invalid("layers", "%d packs, %d disks", len(c.packs), len(c.disks))
	}
	err := errors.Join(
		checkPart("config", c.config, MediaTypeConfig, maxConfig),
		checkPart("state", c.state, MediaTypeState, MaxState),
		checkPart("index", c.index, MediaTypeIndex, maxIndex))
	for i, d := range c.packs {
		err = errors.Join(err, checkPart(fmt.Sprintf("pack %d", i), d, MediaTypePack, format.MaxPack))
	}
	for i, d := range c.disks {
		err = errors.Join(err, checkPart(fmt.Sprintf("disk %d", i), d, MediaTypeDisk, format.MaxSpace))
	}
	return err
}

func checkPart(field string, d v1.Descriptor, mediaType string, limit int64) error {
	if d.MediaType != mediaType {
		return invalid(field+" mediaType", "%q", d.MediaType)
	}
	if err := store.CheckDigest(d.Digest); err != nil {
		return fmt.Errorf("snapshot: %s: %w", field, err)
	}
	if d.Size < 0 || d.Size > limit {
		return invalid(field+" size", "%d", d.Size)
	}
	return nil
}

func parseRef(a map[string]string) (Ref, error) {
	generation, err := strconv.ParseUint(a[AnnotationGeneration], 10, 64)
	if err != nil {
		return Ref{}, invalid(AnnotationGeneration, "%q", a[AnnotationGeneration])
	}
	attempt, err := strconv.ParseUint(a[AnnotationAttempt], 10, 32)
	if err != nil {
		return Ref{}, invalid(AnnotationAttempt, "%q", a[AnnotationAttempt])
	}
	r := Ref{
		VM: a[AnnotationVM], UID: a[AnnotationUID], Operation: a[AnnotationOperation],
		Attempt: uint32(attempt), Generation: generation,
	}
	return r, r.Validate()
}

// match names the first field in which r is not the snapshot that was wanted.
func (r Ref) match(want Ref) error {
	switch {
	case r.VM != want.VM:
		return mismatch("vm", r.VM, want.VM)
	case r.UID != want.UID:
		return mismatch("uid", r.UID, want.UID)
	case r.Generation != want.Generation:
		return mismatch("generation", r.Generation, want.Generation)
	case r.Operation != want.Operation:
		return mismatch("operation", r.Operation, want.Operation)
	case r.Attempt != want.Attempt:
		return mismatch("attempt", r.Attempt, want.Attempt)
	}
	return nil
}

// parseConfig refuses fields that this build does not know: a device that would be
// dropped silently is a guest that breaks later. Of a sealed config it returns the key
// and what only the key opens.
func parseConfig(data []byte, locks *seal.Locks) (*Config, *seal.Key, *sealedBody, error) {
	var head struct {
		Version int `json:"version"`
		Spec    struct {
			Version int `json:"version"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, nil, nil, invalid("config", "%v", err)
	}
	if head.Version > ConfigVersion {
		return nil, nil, nil, fmt.Errorf("snapshot: config version %d, this build reads %d: %w", head.Version, ConfigVersion,
			errdefs.ErrNotImplemented)
	}
	if err := checkSpecVersion(head.Spec.Version); err != nil {
		return nil, nil, nil, err
	}
	c := new(Config)
	if err := decodeStrict(data, "config", c); err != nil {
		return nil, nil, nil, err
	}
	key, body, err := c.unseal(locks)
	if err != nil {
		return nil, nil, nil, err
	}
	return c, key, body, c.validate()
}

func checkSpecVersion(v int) error {
	if v > spec.Version {
		return fmt.Errorf("snapshot: spec version %d, this build reads %d: %w", v, spec.Version, errdefs.ErrNotImplemented)
	}
	return nil
}

// decodeStrict refuses unknown fields and what follows the value.
func decodeStrict(data []byte, what string, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return invalid(what, "%v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return invalid(what, "bytes after its end")
	}
	return nil
}

var diskID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)

// validate checks the config against itself and its Spec. Nothing in it is ever used as
// a path of the host; a name that looks like one is refused all the same.
func (c *Config) validate() error {
	if c.Version != ConfigVersion {
		return invalid("config version", "%d", c.Version)
	}
	if err := c.Ref.Validate(); err != nil {
		return err
	}
	switch {
	case c.Spec == nil:
		return invalid("spec", "missing")
	case c.Spec.Namespace+"/"+c.Spec.ID != c.Ref.VM:
		return invalid("spec", "is of VM %s/%s, not %s", c.Spec.Namespace, c.Spec.ID, c.Ref.VM)
	case c.Spec.UID != c.Ref.UID:
		return invalid("spec.uid", "%q, not %q", c.Spec.UID, c.Ref.UID)
	case len(c.Spaces) == 0 || len(c.Spaces) > format.MaxSpaces:
		return invalid("spaces", "%d", len(c.Spaces))
	case len(c.Disks) > maxDisks:
		return invalid("disks", "%d", len(c.Disks))
	}
	if err := c.Spec.Check(); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	for _, d := range c.Spec.Disks {
		if len(d.ID) > 64 || !diskID.MatchString(d.ID) {
			return invalid("spec.disks", "id %q", d.ID)
		}
	}
	kept := map[string]bool{}
	if err := c.validateSpaces(kept); err != nil {
		return err
	}
	if err := c.validateDisks(kept); err != nil {
		return err
	}
	for _, d := range c.Spec.Disks {
		if !kept[d.ID] {
			return invalid("spec.disks", "%s is neither in spaces nor in disks", d.ID)
		}
	}
	return nil
}

func (c *Config) validateDisks(kept map[string]bool) error {
	for _, d := range c.Disks {
		sd := c.Spec.Disk(d.ID)
		if sd == nil || !sd.ReadOnly || kept[d.ID] {
			return invalid("disks", "%q is no read-only disk of the spec, or twice", d.ID)
		}
		kept[d.ID] = true
		if err := store.CheckDigest(d.Digest); err != nil {
			return fmt.Errorf("snapshot: disk %s: %w", d.ID, err)
		}
		if sd.Digest != "" && digest.Digest(sd.Digest) != d.Digest {
			return mismatch("digest of disk "+d.ID, d.Digest, sd.Digest)
		}
	}
	return nil
}

func (c *Config) validateSpaces(kept map[string]bool) error {
	seen := map[string]bool{}
	for _, s := range c.Spaces {
		if err := format.CheckSpaceName(s.Name); err != nil {
			return fmt.Errorf("snapshot: spaces: %w", err)
		}
		if s.Size <= 0 || s.Size > format.MaxSpace || seen[s.Name] {
			return invalid("spaces", "%s: size %d, or twice", s.Name, s.Size)
		}
		seen[s.Name] = true
		if s.Name[0] == 'r' {
			if s.Disk != "" || s.Name == "ram0" && uint64(s.Size) != c.Spec.Memory {
				return invalid("spaces", "%s: disk %q, size %d of %d", s.Name, s.Disk, s.Size, c.Spec.Memory)
			}
			continue
		}
		if d := c.Spec.Disk(s.Disk); d == nil || d.ReadOnly || kept[s.Disk] {
			return invalid("spaces", "%s: %q is no writable disk of the spec, or twice", s.Name, s.Disk)
		}
		kept[s.Disk] = true
	}
	return nil
}
