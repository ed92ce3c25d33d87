package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
)

// Ranger is a store that can read a part of a blob.
type Ranger interface {
	// GetRange opens n bytes of a blob from offset on. They are not verified: no digest
	// says what a part is. NotImplemented: the store sends blobs only whole.
	GetRange(ctx context.Context, d digest.Digest, offset, n int64) (io.ReadCloser, error)
}

// GetRange implements Ranger. Whether the registry honours Range shows in its first
// answer: one that sends the whole blob instead (200) is not believed again.
func (r *Registry) GetRange(ctx context.Context, d digest.Digest, offset, n int64) (io.ReadCloser, error) {
	o := Blob(d)
	whole := fmt.Errorf("get a part of %s in %s: the registry sends blobs only whole: %w", o, r.repo,
		errdefs.ErrNotImplemented)
	if r.whole.Load() {
		return nil, whole
	}
	resp, from, err := r.download(ctx, call{
		verb: "get a part of", object: o, method: http.MethodGet, url: o.path(),
		header: http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", offset, offset+n-1)}},
	})
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusPartialContent {
		r.whole.Store(true)
		resp.Body.Close()
		return nil, whole
	}
	if err := checkRange(resp, offset); err != nil {
		resp.Body.Close()
		from.reject()
		return nil, fmt.Errorf("get a part of %s in %s: %w", o, r.repo, err)
	}
	return &sent{resp.Body, from}, nil
}

// checkRange accepts an answer that begins where it was asked to.
func checkRange(resp *http.Response, offset int64) error {
	var first int64
	if _, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-", &first); err != nil || first != offset {
		return fmt.Errorf("asked for the bytes from %d on, got %q: %w", offset, resp.Header.Get("Content-Range"),
			errdefs.ErrUnavailable)
	}
	return nil
}

// Get implements Store. Redirects to a blob store are followed, without credentials. A
// body that breaks off goes on where it was, where the registry honours Range. What a tag stands for says no digest:
// no mirror is asked for that.
func (r *Registry) Get(ctx context.Context, o Object) (io.ReadCloser, error) {
	c := call{verb: "get", object: o, method: http.MethodGet, url: o.path(), header: o.accept()}
	if o.digest() == "" {
		resp, err := r.do(ctx, c)
		if err != nil {
			return nil, err
		}
		return resp.Body, nil
	}
	resp, from, err := r.download(ctx, c) //nolint:bodyclose // who reads it closes it
	if err != nil {
		return nil, err
	}
	if o.Manifest {
		return &sent{resp.Body, from}, nil
	}
	return &resumed{registry: r, ctx: ctx, object: o, size: resp.ContentLength, body: &sent{resp.Body, from}}, nil
}

// sent is what a host has sent.
type sent struct {
	io.ReadCloser
	from *host
}

func (s *sent) reject() bool { return s.from.reject() }

// Reject says that a body is not what it should be. True: a mirror sent it, which is not asked for a while, and the
// next host may be right.
func Reject(body io.Reader) bool {
	b, ok := body.(interface{ reject() bool })
	return ok && b.reject()
}

// resumes bounds how often one body is taken up again without having moved a MiB.
const resumes = 3

// resumed is the body of a blob over several connections.
type resumed struct {
	registry *Registry
	ctx      context.Context // of the Get
	object   Object
	size     int64 // -1: unknown
	body     *sent
	offset   int64
	mark     int64 // offset of the last break
	breaks   int
	mirrors  bool // one of them broke off
}

// reject rejects the last host. One that broke off has rested since.
func (b *resumed) reject() bool { return b.body.reject() || b.mirrors }

func (b *resumed) Read(p []byte) (int, error) {
	for {
		n, err := b.body.Read(p)
		b.offset += int64(n)
		if err == nil || errors.Is(err, io.EOF) || b.ctx.Err() != nil {
			return n, err
		}
		if n > 0 {
			return n, nil // what breaks off does so again
		}
		if !b.again() {
			return 0, err
		}
	}
}

// again opens the rest of the blob; false: the first error stands.
func (b *resumed) again() bool {
	if b.offset-b.mark >= 1<<20 {
		b.breaks = 0
	}
	if b.breaks++; b.breaks > resumes {
		return false
	}
	b.mark = b.offset
	b.mirrors = b.body.reject() || b.mirrors
	rest := fmt.Sprintf("bytes=%d-", b.offset)
	if b.size > 0 { // not every registry takes an open range
		rest += fmt.Sprint(b.size - 1)
	}
	resp, from, err := b.registry.download(b.ctx, call{
		verb: "get the rest of", object: b.object, method: http.MethodGet, url: b.object.path(),
		header: http.Header{"Range": {rest}},
	})
	if err != nil {
		return false
	}
	if resp.StatusCode != http.StatusPartialContent || checkRange(resp, b.offset) != nil {
		resp.Body.Close()
		from.reject()
		return false
	}
	b.body.Close()
	b.body = &sent{resp.Body, from}
	return true
}

func (b *resumed) Close() error { return b.body.Close() }
