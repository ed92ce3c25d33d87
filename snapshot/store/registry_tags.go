package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"
)

// Bounds of a whole list of tags. A longer one is an error: what a list lacks counts as gone.
const (
	maxTagPages = 1000
	maxTags     = 100_000
	maxTagBytes = 16 << 20
	tagsTime    = 5 // times that of a call
)

// Tags implements Store.
func (r *Registry) Tags(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, tagsTime*r.keeps.bound, errSlowTags)
	defer cancel()
	list := tagList{left: maxTagBytes}
	read := map[string]bool{}
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
		read[next], read[resp.Request.URL.String()] = true, true
		err = list.add(resp.Body)
		finish(resp)
		if err == nil {
			next, err = nextPage(resp)
		}
		if err == nil && read[next] {
			err = fmt.Errorf("next page is one that was read: %w", errdefs.ErrUnavailable)
		}
		if err != nil {
			return nil, fmt.Errorf("list tags of %s: page %d: %w", r.repo, page+1, classify(err))
		}
		if next == "" {
			return list.tags, nil
		}
	}
	return nil, fmt.Errorf("list tags of %s: more than %d pages: %w", r.repo, maxTagPages, errdefs.ErrResourceExhausted)
}

// tagList is what the pages so far say.
type tagList struct {
	tags []string
	left int64 // bytes that may still come
}

// tagName is what the specification allows.
var tagName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// add reads a page. Its tags are counted before they are taken apart: an empty text takes more memory than its bytes.
func (l *tagList) add(body io.Reader) error {
	limited := &io.LimitedReader{R: body, N: l.left}
	var page struct{ Tags json.RawMessage }
	err := json.NewDecoder(limited).Decode(&page)
	if l.left = limited.N; l.left <= 0 {
		return fmt.Errorf("more than %d bytes: %w", maxTagBytes, errdefs.ErrResourceExhausted)
	}
	if err != nil {
		return err
	}
	if len(l.tags)+bytes.Count(page.Tags, []byte(",")) >= maxTags {
		return fmt.Errorf("more than %d tags: %w", maxTags, errdefs.ErrResourceExhausted)
	}
	var tags []string
	if len(page.Tags) > 0 {
		if err := json.Unmarshal(page.Tags, &tags); err != nil {
			return err
		}
	}
	for _, tag := range tags {
		if !tagName.MatchString(tag) {
			return fmt.Errorf("%.128q is no tag: %w", tag, errdefs.ErrUnavailable)
		}
	}
	l.tags = append(l.tags, tags...)
	return nil
}

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
