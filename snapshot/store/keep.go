package store

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
)

// Keeper keeps on the node what was seen of a repository. What it holds may be wrong, and
// gone at any time; to keep nothing is no error.
type Keeper interface {
	// Open opens what is kept under a name, and says how many bytes it has.
	Open(name string) (body io.ReadCloser, size int64, ok bool)
	// Keep keeps size bytes, of which those between the parts are zero. It is done with the
	// parts when it returns.
	Keep(name string, size int64, parts ...Part)
	// Touch marks a name as just used.
	Touch(name string)
	// Discard forgets a name whose bytes are not what they should be.
	Discard(name string)
}

// Part of an object.
type Part struct {
	Offset int64
	Data   []byte
}

// Keeping returns a store whose blobs are read from k where it has them, and so are manifests
// that are named by their digest. They are kept there once they were read and verified.
func Keeping(s Store, k Keeper) Store { return &keeping{s, k} }

type keeping struct {
	Store
	keeper Keeper
}

// GetRange implements Ranger where the store below does.
func (k *keeping) GetRange(ctx context.Context, d digest.Digest, offset, n int64) (io.ReadCloser, error) {
	s, ok := k.Store.(Ranger)
	if !ok {
		return nil, fmt.Errorf("get a part of %s: %w", d, errdefs.ErrNotImplemented)
	}
	return s.GetRange(ctx, d, offset, n)
}

// KeeperOf returns the keeper of a store, or one that keeps nothing.
func KeeperOf(s Store) Keeper {
	if k, ok := s.(*keeping); ok {
		return k.keeper
	}
	return NoKeeper{}
}

// NoKeeper keeps nothing.
type NoKeeper struct{}

// Open implements Keeper.
func (NoKeeper) Open(string) (io.ReadCloser, int64, bool) { return nil, 0, false }

// Keep implements Keeper.
func (NoKeeper) Keep(string, int64, ...Part) {}

// Touch implements Keeper.
func (NoKeeper) Touch(string) {}

// Discard implements Keeper.
func (NoKeeper) Discard(string) {}

// The first words of the names under which objects are kept, if they are no blobs.
const (
	KeptManifest  = "manifest-"
	KeptSignature = "signature-" // of a manifest: named by its digest, but not its bytes'
	KeptParts     = "parts-"     // of a blob
)

// KeptName is the name under which an object is kept. It is a file name. Empty: it may be
// another one tomorrow.
func KeptName(o Object) string {
	name := strings.Replace(o.digest().String(), ":", "-", 1)
	if name != "" && o.Manifest {
		return KeptManifest + name
	}
	return name
}

// Held returns an object that the node keeps, verified by its digest. One that is damaged is
// thrown away.
func Held(s Store, o Object, limit int64) ([]byte, bool) {
	name := KeptName(o)
	if name == "" {
		return nil, false
	}
	data, ok := HeldAs(s, name, limit)
	if ok && digest.FromBytes(data) != o.digest() {
		KeeperOf(s).Discard(name)
		return nil, false
	}
	return data, ok
}

// HeldAs returns what is kept under a name, whatever it is.
func HeldAs(s Store, name string, limit int64) ([]byte, bool) {
	body, size, ok := KeeperOf(s).Open(name)
	if !ok {
		return nil, false
	}
	defer body.Close()
	if size > limit {
		return nil, false
	}
	data := make([]byte, size)
	_, err := io.ReadFull(body, data)
	return data, err == nil
}

// keep keeps an object that was read and verified.
func keep(s Store, o Object, data []byte) {
	if name := KeptName(o); name != "" {
		KeeperOf(s).Keep(name, int64(len(data)), Part{Data: data})
	}
}
