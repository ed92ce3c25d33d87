package store

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/internal/durable"
)

// Layout is a repository in an OCI layout directory.
type Layout struct {
	dir  string
	root *root // nil: nothing is known of the directory that it lies in
}

var _ Store = (*Layout)(nil)

// maxLayoutIndex bounds index.json: about 100000 tags.
const maxLayoutIndex = 64 << 20

// NewLayout returns the layout of a directory, which is made by the first Put.
func NewLayout(dir string) (*Layout, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("layout %q: not an absolute path: %w", dir, errdefs.ErrInvalidArgument)
	}
	return &Layout{dir: filepath.Clean(dir)}, nil
}

func (l *Layout) blob(d digest.Digest) string {
	return filepath.Join(l.dir, "blobs", d.Algorithm().String(), d.Encoded())
}

// Stat implements Store.
func (l *Layout) Stat(ctx context.Context, o Object) (Info, error) {
	d, err := l.resolve(ctx, o)
	if err != nil {
		return Info{}, err
	}
	st, err := os.Stat(l.blob(d))
	if err != nil {
		return Info{}, fileError("stat", o, err)
	}
	return Info{Digest: d, Size: st.Size()}, nil
}

// Get implements Store.
func (l *Layout) Get(ctx context.Context, o Object) (io.ReadCloser, error) {
	d, err := l.resolve(ctx, o)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(l.blob(d))
	if err != nil {
		return nil, fileError("get", o, err)
	}
	return f, nil
}

// resolve turns a tag into the digest that index.json has for it.
func (l *Layout) resolve(ctx context.Context, o Object) (digest.Digest, error) {
	if err := ctx.Err(); err != nil {
		return "", context.Cause(ctx)
	}
	// A directory that is not mounted has no blob either: that is not an answer.
	if _, err := os.Stat(filepath.Join(l.dir, v1.ImageLayoutFile)); err != nil {
		return "", fileError("open layout of", o, err)
	}
	if d := o.digest(); d != "" {
		return d, nil
	}
	if !o.Manifest {
		return "", CheckDigest(digest.Digest(o.Name))
	}
	index, err := l.index()
	if err != nil {
		return "", err
	}
	for _, m := range index.Manifests {
		if m.Annotations[v1.AnnotationRefName] == o.Name {
			return m.Digest, CheckDigest(m.Digest)
		}
	}
	return "", fmt.Errorf("%s in %s: %w", o, l.dir, errdefs.ErrNotFound)
}

// Put implements Store. A blob is linked into place only when its bytes are on disk and have its
// digest. A manifest named by a tag enters index.json after that.
func (l *Layout) Put(ctx context.Context, o Object, c Content) error {
	if err := CheckDigest(c.Digest); err != nil {
		return fmt.Errorf("put %s: %w", o, err)
	}
	if err := l.init(); err != nil {
		return fileError("put", o, err)
	}
	if err := l.putBlob(ctx, o, c); err != nil {
		return err
	}
	if !o.Manifest || o.digest() != "" {
		return nil
	}
	return l.update(o, func(index *v1.Index) error {
		if err := l.whole(c.Digest); err != nil {
			return fmt.Errorf("put %s: %w", o, err)
		}
		dropTag(index, o.Name)
		index.Manifests = append(index.Manifests, v1.Descriptor{
			MediaType: c.MediaType, Digest: c.Digest, Size: c.Size,
			Annotations: map[string]string{v1.AnnotationRefName: o.Name},
		})
		return nil
	})
}

func (l *Layout) putBlob(ctx context.Context, o Object, c Content) error {
	path := l.blob(c.Digest)
	if st, err := os.Stat(path); err == nil && st.Size() == c.Size {
		return l.touch(path, o)
	}
	if from, ok := strings.CutPrefix(c.From, LayoutPrefix); ok && from != l.dir {
		if other, err := NewLayout(from); err == nil && os.Link(other.blob(c.Digest), path) == nil {
			return durable.SyncDir(filepath.Dir(path))
		}
	}
	body, err := c.Open()
	if err != nil {
		return fmt.Errorf("put %s: %w", o, err)
	}
	defer body.Close()
	return l.write(path, o, func(f *os.File) error {
		h := sha256.New()
		n, err := io.Copy(io.MultiWriter(h, f), contextReader{ctx, io.LimitReader(body, c.Size+1)})
		if err != nil {
			return err
		}
		if got := digest.NewDigest(digest.SHA256, h); n != c.Size || got != c.Digest {
			return fmt.Errorf("%d bytes of %d with digest %s: %w", n, c.Size, got, errdefs.ErrDataLoss)
		}
		return nil
	})
}

// Delete implements Store. Blobs stay until Collect: a push under way may count on them.
func (l *Layout) Delete(_ context.Context, name string) error {
	o := Manifest(name)
	// A directory that is not mounted has no tag either: nothing is deleted there.
	if _, err := os.Stat(filepath.Join(l.dir, v1.ImageLayoutFile)); err != nil {
		return fileError("open layout of", o, err)
	}
	return l.update(o, func(index *v1.Index) error {
		index.Manifests = slices.DeleteFunc(index.Manifests, func(d v1.Descriptor) bool {
			return d.Annotations[v1.AnnotationRefName] == name || d.Digest == o.digest()
		})
		return nil
	})
}

// Tags implements Store.
func (l *Layout) Tags(context.Context) ([]string, error) {
	index, err := l.index()
	if err != nil {
		return nil, err
	}
	var tags []string
	for _, m := range index.Manifests {
		if tag := m.Annotations[v1.AnnotationRefName]; tag != "" {
			tags = append(tags, tag)
		}
	}
	slices.Sort(tags)
	return tags, nil
}

func dropTag(index *v1.Index, tag string) {
	index.Manifests = slices.DeleteFunc(index.Manifests, func(d v1.Descriptor) bool {
		return d.Annotations[v1.AnnotationRefName] == tag
	})
}

func (l *Layout) init() error {
	if l.root != nil {
		if err := l.root.check(); err != nil {
			return err
		}
	}
	dir := filepath.Join(l.dir, "blobs", digest.SHA256.String())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(l.dir, v1.ImageLayoutFile)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := l.update(Manifest(v1.ImageIndexFile), func(*v1.Index) error { return nil }); err != nil {
		return err // index says why it comes first
	}
	return l.write(path, Manifest(v1.ImageLayoutFile), func(f *os.File) error {
		return json.NewEncoder(f).Encode(v1.ImageLayout{Version: v1.ImageLayoutVersion})
	})
}

// index reads index.json, which is there before the first blob. One that has gone lists nothing, and all blobs would be
// collected.
func (l *Layout) index() (*v1.Index, error) {
	o := Manifest(v1.ImageIndexFile)
	index := &v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
	f, err := os.Open(filepath.Join(l.dir, v1.ImageIndexFile))
	if errors.Is(err, fs.ErrNotExist) {
		return index, l.empty()
	}
	if err != nil {
		return nil, fileError("read", o, err)
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, maxLayoutIndex)).Decode(index); err != nil {
		return nil, fmt.Errorf("read %s of %s: %w: %w", v1.ImageIndexFile, l.dir, err, errdefs.ErrDataLoss)
	}
	return index, nil
}

// empty is an error if there are blobs.
func (l *Layout) empty() error {
	entries, err := os.ReadDir(filepath.Join(l.dir, "blobs", digest.SHA256.String()))
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fileError("read", Manifest(v1.ImageIndexFile), err)
	case len(entries) > 0:
		return fmt.Errorf("%s has blobs and no %s, which lists them: put that file back, or remove the directory: %w", l.dir,
			v1.ImageIndexFile, errdefs.ErrDataLoss)
	}
	return nil
}

// update changes index.json under a lock that other processes honour. The new file has
// one fixed name until it is renamed: what a crash leaves is overwritten by the next.
func (l *Layout) update(o Object, change func(*v1.Index) error) error {
	unlock, err := l.lock()
	if err != nil {
		return fileError("update", o, err)
	}
	defer unlock()
	index, err := l.index()
	if err != nil {
		return err
	}
	if err := change(index); err != nil {
		return err
	}
	data, err := json.Marshal(index)
	if err != nil {
		return fmt.Errorf("update %s: %w", o, err)
	}
	path := filepath.Join(l.dir, v1.ImageIndexFile)
	if err := writeSynced(path+".new", data); err != nil {
		return fileError("update", o, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fileError("update", o, err)
	}
	return fileError("update", o, durable.SyncDir(l.dir))
}
