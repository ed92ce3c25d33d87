package snapshot

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/sign"
	"godwit.dev/godwit/snapshot/store"
)

// Snapshot is one that has been opened: manifest, config and index are verified and fit
// each other.
type Snapshot struct {
	Digest digest.Digest
	Config *Config

	store     store.Store
	parts     *contents
	index     *format.Index
	indexBlob []byte // in the clear

	key  *seal.Key   // of the push; nil: not sealed
	keys []*seal.Key // by pack
}

// Open reads manifest, config and index of the snapshot with that digest. It refuses it unless they are whole and
// of this format. If want is not nil, they must be of that step of that operation of that VM, too. Classes:
// NotFound (the store says so), InvalidArgument, NotImplemented (a newer format), FailedPrecondition (another VM's
// or operation's), DataLoss, and those of the store.
func Open(ctx context.Context, st store.Store, d digest.Digest, want *Ref) (*Snapshot, error) {
	return OpenWith(ctx, st, d, want, &Keys{})
}

// OpenWith is Open by a node that has keys. A snapshot that is sealed for others is FailedPrecondition. One that is
// not sealed, or not signed by a trusted key, where the keys demand it, is PermissionDenied.
func OpenWith(ctx context.Context, st store.Store, d digest.Digest, want *Ref, keys *Keys) (*Snapshot, error) {
	s, err := open(ctx, st, d, want, keys)
	if err != nil {
		return nil, fmt.Errorf("open snapshot %s: %w", d, err)
	}
	return s, nil
}

func open(ctx context.Context, st store.Store, d digest.Digest, want *Ref, keys *Keys) (*Snapshot, error) {
	parts, err := openManifest(ctx, st, d, &keys.Trust)
	if err != nil {
		return nil, err
	}
	if want != nil {
		if err := parts.ref.match(*want); err != nil {
			return nil, err
		}
	}
	s := &Snapshot{Digest: d, store: st, parts: parts}
	data, err := s.read(ctx, "config", parts.config)
	if err != nil {
		return nil, err
	}
	var body *sealedBody
	if s.Config, s.key, body, err = parseConfig(data, &keys.Locks); err != nil {
		return nil, err
	}
	s.keys = make([]*seal.Key, len(parts.packs))
	if body != nil {
		if s.keys, err = body.packKeys(s.key, len(parts.packs)); err != nil {
			return nil, err
		}
	}
	if err := s.Config.Ref.match(parts.ref); err != nil {
		return nil, fmt.Errorf("config and annotations differ: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if err := s.readIndex(ctx, parts.index); err != nil {
		return nil, err
	}
	return s, s.check()
}

func openManifest(ctx context.Context, st store.Store, d digest.Digest, trust *sign.Trust) (*contents, error) {
	if err := store.CheckDigest(d); err != nil {
		return nil, err
	}
	if err := checkSignature(ctx, st, trust, d); err != nil {
		return nil, err
	}
	data, err := store.Read(ctx, st, store.Manifest(d.String()), maxManifest)
	if err != nil {
		return nil, err
	}
	return parseManifest(data)
}

func (s *Snapshot) read(ctx context.Context, what string, d v1.Descriptor) ([]byte, error) {
	data, err := store.ReadBlob(ctx, s.store, d.Digest, d.Size)
	if err != nil {
		return nil, store.Lost(what, d, err)
	}
	return data, nil
}

// readIndex reads what says which pages there are, and opens it where it is sealed.
func (s *Snapshot) readIndex(ctx context.Context, d v1.Descriptor) (err error) {
	if s.indexBlob, err = s.read(ctx, "index", d); err != nil {
		return err
	}
	if s.key != nil {
		if s.indexBlob, err = s.key.Open(nil, s.indexBlob, aboutIndex); err != nil {
			return err
		}
	}
	s.index, err = format.Decode(s.indexBlob)
	return err
}

// check compares manifest, config and index with each other.
func (s *Snapshot) check() error {
	if err := s.checkPacks(); err != nil {
		return err
	}
	if len(s.Config.Spaces) != len(s.index.Spaces) {
		return invalid("spaces", "%d in the config, %d in the index", len(s.Config.Spaces), len(s.index.Spaces))
	}
	for i, c := range s.Config.Spaces {
		if x := s.index.Spaces[i]; x.Name != c.Name || x.Size != uint64(c.Size) {
			return invalid("spaces", "%d: %s of %d bytes in the config, %s of %d in the index", i, c.Name, c.Size,
				x.Name, x.Size)
		}
	}
	if len(s.Config.Disks) != len(s.parts.disks) {
		return invalid("disks", "%d in the config, %d in the manifest", len(s.Config.Disks), len(s.parts.disks))
	}
	for i, c := range s.Config.Disks {
		if d := s.parts.disks[i]; d.Digest != c.Digest || d.Size != c.Size {
			return invalid("disks", "%s: %s in the config, %s in the manifest", c.ID, c.Digest, d.Digest)
		}
	}
	return nil
}

func (s *Snapshot) checkPacks() error {
	if len(s.parts.packs) != len(s.index.Packs) {
		return invalid("packs", "%d in the manifest, %d in the index", len(s.parts.packs), len(s.index.Packs))
	}
	for i, p := range s.index.Packs {
		if d := packDescriptor(p); d.Digest != s.parts.packs[i].Digest || d.Size != s.parts.packs[i].Size {
			return invalid("packs", "%d: %s in the manifest, %s in the index", i, s.parts.packs[i].Digest, d.Digest)
		}
	}
	return nil
}

// State writes the device state. After an error what w got must not be used.
func (s *Snapshot) State(ctx context.Context, w io.Writer) error {
	if s.key == nil && s.parts.state.Size > maxKept {
		return s.copy(ctx, "state", s.parts.state, w)
	}
	if s.key != nil && s.parts.state.Size > maxSealedState+seal.Overhead {
		return invalid("state", "%d sealed bytes", s.parts.state.Size)
	}
	data, err := s.read(ctx, "state", s.parts.state)
	if err != nil {
		return fmt.Errorf("restore snapshot %s: %w", s.Digest, err)
	}
	if s.key != nil {
		return s.openState(data, w)
	}
	_, err = w.Write(data)
	return err
}

// Disk writes the read-only disk of that digest. After an error what w got must not be
// used.
func (s *Snapshot) Disk(ctx context.Context, d digest.Digest, w io.Writer) error {
	i := slices.IndexFunc(s.parts.disks, func(l v1.Descriptor) bool { return l.Digest == d })
	if i < 0 {
		return fmt.Errorf("snapshot %s: disk %s: not listed: %w", s.Digest, d, errdefs.ErrInvalidArgument)
	}
	return s.copy(ctx, "disk", s.parts.disks[i], w)
}

func (s *Snapshot) copy(ctx context.Context, what string, d v1.Descriptor, w io.Writer) error {
	if err := store.Copy(ctx, s.store, d.Digest, d.Size, w); err != nil {
		return fmt.Errorf("restore snapshot %s: %w", s.Digest, store.Lost(what, d, err))
	}
	return nil
}

// Bytes returns the size of everything that a restore fetches, and of its pages when
// they are unpacked.
func (s *Snapshot) Bytes() (stored, pages uint64) {
	for _, p := range s.index.Packs {
		stored += p.Size
	}
	for i := range s.index.Spaces {
		pages += s.index.Spaces[i].Content()
	}
	return stored + uint64(s.parts.state.Size), pages
}

// RAM returns how many bytes of pages of RAM are not zero.
func (s *Snapshot) RAM() (bytes uint64) {
	for i, sp := range s.Config.Spaces {
		if sp.Disk == "" {
			bytes += s.index.Spaces[i].Content()
		}
	}
	return bytes
}
