package store

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

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

// Tags implements Store.
func (r *Registry) Tags(ctx context.Context) ([]string, error) {
	var tags []string
	next := "tags/list?n=1000"
	for page := range maxTagPages {
		resp, err := r.do(ctx, call{verb: "list tags of", object: Manifest(r.repo.RepositoryStr()), method: http.MethodGet,
			url: next})
		if errdefs.IsNotFound(err) && page == 0 {
			return nil, nil
		}
		if errdefs.IsNotFound(err) { // the list goes on there, by the registry's own word
			return nil, fmt.Errorf("list tags of %s: page %d: %v: %w", r.repo, page+1, err, errdefs.ErrUnavailable)
		}
		if err != nil {
			return nil, err
		}
		var list struct{ Tags []string }
		err = json.NewDecoder(io.LimitReader(resp.Body, 8<<20)).Decode(&list)
		finish(resp)
		if err == nil {
			next, err = nextPage(resp)
		}
		if err != nil {
			return nil, fmt.Errorf("list tags of %s: page %d: %w: %w", r.repo, page+1, err, errdefs.ErrUnavailable)
		}
		if tags = append(tags, list.Tags...); next == "" {
			return tags, nil
		}
	}
	return nil, fmt.Errorf("list tags of %s: more than %d pages: %w", r.repo, maxTagPages, errdefs.ErrResourceExhausted)
}

const maxTagPages = 1000

// nextPage reads the Link header of RFC 8288: <URL>; rel="next". Empty: this page is the last one.
// A link that cannot be followed is an error: without its page the list is not whole.
func nextPage(resp *http.Response) (string, error) {
	for _, link := range resp.Header.Values("Link") {
		target, params, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(link), "<"), ">")
		if !ok || !strings.Contains(strings.ReplaceAll(params, `"`, ""), "rel=next") {
			continue
		}
		u, err := resp.Request.URL.Parse(target)
		if err != nil {
			return "", fmt.Errorf("next page: %w", err)
		}
		if u.Host != resp.Request.URL.Host {
			return "", fmt.Errorf("next page is on another host, %q", u.Host)
		}
		return u.String(), nil
	}
	return "", nil
}
