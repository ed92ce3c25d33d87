// Package store keeps blobs and manifests of snapshots: in a repository of an OCI
// registry or in an OCI layout directory. Every call that leaves the process on behalf
// of a snapshot goes through Store.
package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
)

// Store is one repository. Its errors carry an errdefs class. NotFound comes only when the store
// itself said that the object is not there, Unavailable for what may pass, ResourceExhausted for
// a full one. The others are Unauthenticated, PermissionDenied and DataLoss.
type Store interface {
	// Stat asks for an object without its bytes.
	Stat(ctx context.Context, o Object) (Info, error)
	// Get opens an object. Its bytes are not verified; see Read and Copy.
	Get(ctx context.Context, o Object) (io.ReadCloser, error)
	// Put stores an object. It exists afterwards, whole, or not at all.
	Put(ctx context.Context, o Object, c Content) error
	// Delete removes a tag, or a manifest by its digest. Deleting what is not there
	// succeeds; a store that deletes nothing answers PermissionDenied or NotImplemented.
	Delete(ctx context.Context, name string) error
	// Tags lists the tags. A repository that does not exist has none.
	Tags(ctx context.Context) ([]string, error)
}

// Object is a blob, by digest, or a manifest, by digest or tag.
type Object struct {
	Manifest bool
	Name     string
}

// Blob names a blob.
func Blob(d digest.Digest) Object { return Object{Name: d.String()} }

// Manifest names a manifest by digest or tag.
func Manifest(name string) Object { return Object{Manifest: true, Name: name} }

func (o Object) String() string {
	if o.Manifest {
		return "manifest " + o.Name
	}
	return "blob " + o.Name
}

// digest of the object, or "" for a tag.
func (o Object) digest() digest.Digest {
	if d := digest.Digest(o.Name); CheckDigest(d) == nil {
		return d
	}
	return ""
}

// CheckDigest refuses everything but sha256, the one algorithm that all registries know.
func CheckDigest(d digest.Digest) error {
	if err := d.Validate(); err != nil || d.Algorithm() != digest.SHA256 {
		return fmt.Errorf("digest %q: not sha256:<64 hex digits>: %w", d, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Info of a stored object.
type Info struct {
	Digest digest.Digest
	Size   int64
}

// Content is what Put stores. Open may be called more than once: a retry sends the
// whole again.
type Content struct {
	Digest    digest.Digest
	Size      int64
	MediaType string // of a manifest
	Open      func() (io.ReadCloser, error)
	// From names a repository of the same store that may hold the blob already.
	From string
}

// Bytes is the content of a buffer with digest d; it must not change until Put returns.
func Bytes(data []byte, d digest.Digest) Content {
	return Content{
		Digest: d, Size: int64(len(data)),
		Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
	}
}

// File is the content of size bytes of an open file.
func File(f io.ReaderAt, d digest.Digest, size int64) Content {
	return Content{
		Digest: d, Size: size,
		Open: func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(f, 0, size)), nil },
	}
}

// Config names a store. The node's own credentials are not in it: they are read from the docker configuration where
// the store is used.
type Config struct {
	// Repository is host/path of a registry, or LayoutPrefix and a directory.
	Repository   string `json:"repository"`
	PlainHTTP    bool   `json:"plainHTTP,omitempty"`
	CAFile       string `json:"caFile,omitempty"`       // PEM, in addition to the system's
	DockerConfig string `json:"dockerConfig,omitempty"` // directory of config.json; empty: the default places
	HostsDir     string `json:"hostsDir,omitempty"`     // of containerd's hosts.toml, a directory a registry
	Login        *Login `json:"login,omitempty"`        // for the registry itself, and no mirror; nil: as docker has it
	Keys         *Keys  `json:"keys,omitempty"`         // for what is made and read there; nil: the node's own alone
	// bytes a second that all transfers together move at most; 0: no limit
	Bandwidth int64 `json:"bandwidth,omitempty"`
	// Root is a directory of layouts, and Notes where this node keeps which one it has used; empty: not known
	Root  string `json:"root,omitempty"`
	Notes string `json:"notes,omitempty"`
}

// LayoutPrefix marks a repository that is an OCI layout directory.
const LayoutPrefix = "oci-layout:"

// Open returns the store of cfg with retries. Nothing is asked of a registry yet. A layout is Unavailable where
// Root is no more the directory that this node has used, as if it is not mounted.
func Open(cfg Config) (Store, error) {
	if dir, ok := strings.CutPrefix(cfg.Repository, LayoutPrefix); ok {
		return openLayout(dir, cfg)
	}
	r, err := NewRegistry(cfg)
	if err != nil {
		return nil, err
	}
	return Retry(r), nil
}

// mostHosts bounds how many hosts are asked for one object, one after the other, if each sends something else.
const mostHosts = 4

// Read returns an object whole, verified against its digest if it is named by one. More
// than limit bytes are InvalidArgument. What a mirror sends wrongly is read from the next host.
func Read(ctx context.Context, s Store, o Object, limit int64) ([]byte, error) {
	if data, ok := Held(s, o, limit); ok {
		return data, nil
	}
	for try := 1; ; try++ {
		data, again, err := readOnce(ctx, s, o, limit)
		if err == nil {
			keep(s, o, data)
			return data, nil
		}
		if !again || try == mostHosts || ctx.Err() != nil {
			return nil, err
		}
	}
}

// readOnce reports whether another host may have it.
func readOnce(ctx context.Context, s Store, o Object, limit int64) (data []byte, again bool, err error) {
	body, err := s.Get(ctx, o)
	if err != nil {
		return nil, false, err
	}
	defer body.Close()
	data, err = io.ReadAll(io.LimitReader(body, limit+1))
	d := o.digest()
	switch {
	case err != nil:
		err = readError(ctx, o, err)
	case int64(len(data)) > limit:
		err = fmt.Errorf("read %s: more than %d bytes: %w", o, limit, errdefs.ErrInvalidArgument)
	case d != "" && digest.FromBytes(data) != d:
		err = fmt.Errorf("read %s: %d bytes with another digest: %w", o, len(data), errdefs.ErrDataLoss)
	}
	return data, err != nil && ctx.Err() == nil && Reject(body), err
}

// ReadBlob returns a blob of known size, verified. The caller has bounded size.
func ReadBlob(ctx context.Context, s Store, d digest.Digest, size int64) ([]byte, error) {
	if data, ok := Held(s, Blob(d), size); ok && int64(len(data)) == size {
		return data, nil
	}
	buf := bytes.NewBuffer(make([]byte, 0, size))
	if err := Copy(ctx, s, d, size, buf); err != nil {
		return nil, err
	}
	keep(s, Blob(d), buf.Bytes())
	return buf.Bytes(), nil
}

// Copy writes a blob to w and verifies size and digest. After an error what w got must
// not be used. What a mirror sends wrongly comes from the next host, if w can begin anew.
func Copy(ctx context.Context, s Store, d digest.Digest, size int64, w io.Writer) error {
	anew := restart(w)
	for try := 1; ; try++ {
		again, err := copyOnce(ctx, s, d, size, w)
		if err == nil || !again || try == mostHosts || ctx.Err() != nil || !anew() {
			return err
		}
	}
}

// restart returns what has w forget what is written from now on; false: it cannot.
func restart(w io.Writer) func() bool {
	switch w := w.(type) {
	case *bytes.Buffer:
		n := w.Len()
		return func() bool { w.Truncate(n); return true }
	case *os.File:
		at, err := w.Seek(0, io.SeekCurrent)
		return func() bool {
			if err == nil {
				_, err = w.Seek(at, io.SeekStart) // what is right has as many bytes as what is written over
			}
			return err == nil
		}
	}
	return func() bool { return w == io.Discard }
}

// copyOnce reports whether another host may have it.
func copyOnce(ctx context.Context, s Store, d digest.Digest, size int64, w io.Writer) (again bool, err error) {
	o := Blob(d)
	body, err := s.Get(ctx, o)
	if err != nil {
		return false, err
	}
	defer body.Close()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(h, w), io.LimitReader(body, size))
	if err != nil {
		return false, readError(ctx, o, err) // w's, or that of a body which has taken other hosts
	}
	more, err := io.CopyN(io.Discard, body, 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, readError(ctx, o, err)
	}
	if n += more; n != size || digest.NewDigest(digest.SHA256, h) != d {
		return Reject(body), fmt.Errorf("copy %s: %d bytes of %d, or another digest: %w", o, n, size, errdefs.ErrDataLoss)
	}
	return false, nil
}

// readError gives an error in the middle of a body its class.
func readError(ctx context.Context, o Object, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("read %s: %w", o, context.Cause(ctx))
	}
	return fmt.Errorf("read %s: %w", o, classify(err))
}

// classify makes an error without a class Unavailable. A deadline or a cancellation that
// is not the caller's is a timeout on the way.
func classify(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errdefs.Resolve(err) == errdefs.ErrUnknown {
		return fmt.Errorf("%v: %w", err, errdefs.ErrUnavailable)
	}
	return err
}
