package store

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

func (o Object) path() string {
	if o.Manifest {
		return "manifests/" + o.Name
	}
	return "blobs/" + o.Name
}

func (o Object) accept() http.Header {
	if !o.Manifest {
		return nil
	}
	return http.Header{"Accept": {v1.MediaTypeImageManifest}}
}

// Stat implements Store.
func (r *Registry) Stat(ctx context.Context, o Object) (Info, error) {
	resp, err := r.do(ctx, call{verb: "stat", object: o, method: http.MethodHead, url: o.path(), header: o.accept()})
	if err != nil {
		return Info{}, err
	}
	finish(resp)
	info := Info{Digest: o.digest(), Size: resp.ContentLength}
	if info.Digest == "" {
		info.Digest = digest.Digest(resp.Header.Get("Docker-Content-Digest"))
		if err := CheckDigest(info.Digest); err != nil {
			return Info{}, fmt.Errorf("stat %s in %s: %w: %w", o, r.repo, err, errdefs.ErrUnavailable)
		}
	}
	return info, nil
}

// Put implements Store.
func (r *Registry) Put(ctx context.Context, o Object, c Content) error {
	if err := CheckDigest(c.Digest); err != nil {
		return fmt.Errorf("put %s: %w", o, err)
	}
	if !o.Manifest {
		return r.putBlob(ctx, o, c)
	}
	resp, err := r.do(ctx, call{
		verb: "put", object: o, method: http.MethodPut, url: o.path(),
		header: http.Header{"Content-Type": {c.MediaType}}, open: c.Open, size: c.Size,
	})
	if err != nil {
		return err
	}
	finish(resp)
	return nil
}

// askFirst is the size from which a blob is asked for before it is sent. What an earlier attempt
// has pushed is not pushed again, and a question costs little compared to the bytes.
const askFirst = 1 << 20

// putBlob opens a session and sends the whole blob in one request. A session that asks
// to mount from another repository may end at once.
func (r *Registry) putBlob(ctx context.Context, o Object, c Content) error {
	if c.Size >= askFirst {
		info, err := r.Stat(ctx, o)
		if err == nil && info.Size == c.Size || err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	resp, err := r.do(ctx, call{verb: "put", object: o, method: http.MethodPost, url: "blobs/uploads/" + r.mount(c)})
	if err != nil {
		return err
	}
	finish(resp)
	if resp.StatusCode == http.StatusCreated {
		return nil
	}
	to, err := resolveLocation(resp)
	if err != nil {
		return fmt.Errorf("put %s in %s: %w", o, r.repo, err)
	}
	// The session's own query belongs to the registry; the digest is added to it.
	if to.RawQuery != "" {
		to.RawQuery += "&"
	}
	to.RawQuery += "digest=" + url.QueryEscape(c.Digest.String())
	resp, err = r.do(ctx, call{
		verb: "put", object: o, method: http.MethodPut, url: to.String(),
		header: http.Header{"Content-Type": {"application/octet-stream"}}, open: c.Open, size: c.Size,
	})
	if err != nil {
		return err
	}
	finish(resp)
	return nil
}

func mountQuery(d digest.Digest, from string) string {
	return "?" + url.Values{"mount": {d.String()}, "from": {from}}.Encode()
}

// resolveLocation returns the upload's address, absolute.
func resolveLocation(resp *http.Response) (*url.URL, error) {
	u, err := resp.Location()
	if err != nil {
		return nil, fmt.Errorf("upload has no location: %w: %w", err, errdefs.ErrUnavailable)
	}
	return u, nil
}

// Delete implements Store.
func (r *Registry) Delete(ctx context.Context, name string) error {
	o := Manifest(name)
	resp, err := r.do(ctx, call{verb: "delete", object: o, method: http.MethodDelete, url: o.path()})
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	finish(resp)
	return nil
}
