package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/internal/filelock"
)

// Collected counts what Collect has removed.
type Collected struct {
	Files int
	Bytes uint64
}

// Collect removes blobs that no manifest of index.json lists, once they are older than grace. It
// also removes files of that age that a killed writer has left. Of another program's files it
// removes nothing. A dry one only counts. A push that meets it finds at its manifest, under the
// same lock, that a blob is gone, and is Aborted.
func (l *Layout) Collect(ctx context.Context, grace time.Duration, dry bool) (Collected, error) {
	var c Collected
	if _, err := os.Stat(filepath.Join(l.dir, v1.ImageLayoutFile)); err != nil {
		return c, fileError("open layout of", Manifest("*"), err)
	}
	unlock, err := l.lock()
	if err != nil {
		return c, fileError("collect", Manifest("*"), err)
	}
	defer unlock()
	index, err := l.index()
	if err != nil {
		return c, err
	}
	kept, listing := map[string]bool{}, l.listing()
	for _, m := range index.Manifests {
		listed, err := listing.of(m.Digest, 0)
		if err != nil {
			return c, err // what it keeps is unknown
		}
		kept[m.Digest.Encoded()] = true
		for _, d := range listed {
			kept[d.Encoded()] = true
		}
	}
	dir := filepath.Join(l.dir, "blobs", digest.SHA256.String())
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, fileError("collect", Manifest("*"), err)
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return c, context.Cause(ctx)
		}
		hex, staged := strings.CutSuffix(e.Name(), ".tmp")
		hex, _, _ = strings.Cut(hex, ".")
		if digest.NewDigestFromEncoded(digest.SHA256, hex).Validate() != nil || kept[e.Name()] || !staged && hex != e.Name() {
			continue
		}
		st, err := e.Info()
		if err != nil || time.Since(st.ModTime()) < grace {
			continue // gone, or perhaps of a push under way
		}
		if !dry {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return c, fileError("collect", Manifest("*"), err)
			}
		}
		c.Files++
		c.Bytes += uint64(st.Size())
	}
	return c, nil
}

// Bounds of what another program may have written.
const (
	maxLayoutManifest = 4 << 20 // what registries take at most
	maxNested         = 4       // indexes in indexes
)

// listing finds what manifests list. Each one is read once.
type listing struct {
	layout *Layout
	read   map[digest.Digest]bool
}

func (l *Layout) listing() listing { return listing{l, map[digest.Digest]bool{}} }

// of a manifest in the layout: its blobs, or those of all that an index of another program lists, which is nested so
// deep. What was read before is left out.
func (l listing) of(d digest.Digest, depth int) ([]digest.Digest, error) {
	if l.read[d] {
		return nil, nil
	}
	if depth > maxNested {
		return nil, fmt.Errorf("read manifest %s: below more than %d indexes: %w", d, maxNested, errdefs.ErrDataLoss)
	}
	data, err := l.layout.manifest(d)
	if err != nil {
		return nil, err
	}
	l.read[d] = true
	var m struct {
		v1.Manifest
		Manifests []v1.Descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("read manifest %s: %w: %w", d, err, errdefs.ErrDataLoss)
	}
	all := []digest.Digest{}
	for _, b := range append(append(m.Layers, m.Manifests...), m.Config) {
		if b.Digest == "" {
			continue // another program's, which has no such thing
		}
		if !strings.Contains(b.Digest.String(), ":") {
			return nil, fmt.Errorf("read manifest %s: blob %q: %w", d, b.Digest, errdefs.ErrDataLoss)
		}
		all = append(all, b.Digest)
	}
	for _, child := range m.Manifests {
		more, err := l.of(child.Digest, depth+1)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

// manifest is verified: what a false one lists says nothing of what is kept.
func (l *Layout) manifest(d digest.Digest) ([]byte, error) {
	if err := CheckDigest(d); err != nil {
		return nil, err
	}
	o := Manifest(d.String())
	f, err := os.Open(l.blob(d))
	if err != nil {
		return nil, fileError("read", o, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxLayoutManifest+1))
	if err != nil {
		return nil, fileError("read", o, err)
	}
	if len(data) > maxLayoutManifest || digest.FromBytes(data) != d {
		return nil, fmt.Errorf("read %s: more than %d bytes, or another digest: %w", o, maxLayoutManifest,
			errdefs.ErrDataLoss)
	}
	return data, nil
}

// whole refuses a manifest whose blobs are not all there, as a registry does.
func (l *Layout) whole(d digest.Digest) error {
	listed, err := l.listing().of(d, 0)
	if err != nil {
		return err
	}
	for _, b := range listed {
		if CheckDigest(b) != nil {
			continue // of another algorithm: not ours to judge
		}
		if _, err := os.Stat(l.blob(b)); err != nil {
			return fmt.Errorf("its blob %s: %w: %w", b, err, errdefs.ErrAborted)
		}
	}
	return nil
}

// touch keeps Collect away from a blob that a push has found.
func (l *Layout) touch(path string, o Object) error {
	now := time.Now()
	if err := os.Chtimes(path, now, now); err != nil && !errors.Is(err, fs.ErrPermission) {
		return fileError("put", o, err)
	}
	return nil
}

// lock is one that other processes honour.
func (l *Layout) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(l.dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := filelock.Lock(f, syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
