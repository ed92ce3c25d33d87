package worker

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/cache"
	"godwit.dev/godwit/snapshot/store"
)

// DiffJob compares two snapshots.
type DiffJob struct {
	From, To Place
}

// Place is where a snapshot lies, and the keys to open it.
type Place struct {
	Store  store.Config  `json:"store"`
	Keys   Keys          `json:"keys,omitzero"`
	Digest digest.Digest `json:"digest"`
}

// CopyJob brings a snapshot into another repository.
type CopyJob struct {
	From   Place        `json:"from"`
	To     store.Config `json:"to"`
	Tag    string       `json:"tag,omitempty"`
	Memory int64        `json:"memory,omitempty"`
	Golden bool         `json:"golden,omitempty"` // it is a golden snapshot
}

// Diff compares two snapshots page by page.
func (c *Client) Diff(ctx context.Context, j DiffJob) ([]snapshot.SpaceDiff, error) {
	l, err := c.run(ctx, job{Diff: &j}, nil, nil)
	if err == nil && l.Diff == nil {
		err = errAnswer
	}
	if err != nil {
		return nil, err
	}
	return *l.Diff, nil
}

// Copy brings a snapshot elsewhere; after an error there is none there.
func (c *Client) Copy(ctx context.Context, j CopyJob, notify func(Progress)) (snapshot.Copied, error) {
	l, err := c.run(ctx, job{Copy: &j}, nil, notify)
	if err == nil && l.Copied == nil {
		err = errAnswer
	}
	if err != nil {
		return snapshot.Copied{}, err
	}
	return *l.Copied, nil
}

// access is a place whose credentials and keys have been read.
type access struct {
	Place
	store store.Store
	keys  snapshot.Keys
}

func (p Place) access() (a access, err error) {
	a.Place = p
	if a.store, err = store.Open(p.Store); err != nil {
		return a, err
	}
	store.Note(a.store)
	a.keys, err = p.Keys.Load(p.Store.Keys)
	return a, err
}

func (a *access) open(ctx context.Context, want *snapshot.Ref) (*snapshot.Snapshot, error) {
	return snapshot.OpenWith(ctx, a.store, a.Digest, want, &a.keys)
}

// open reads a snapshot in a process that is confined from then on.
func open(ctx context.Context, p Place, want *snapshot.Ref, kept *cache.Dir) (*snapshot.Snapshot, error) {
	a, err := p.access()
	if err != nil {
		return nil, err
	}
	if err := confine(kept, p.Store); err != nil {
		return nil, err
	}
	a.store = withCache(a.store, kept)
	return a.open(ctx, want)
}

func (j *DiffJob) run(ctx context.Context) (line, error) {
	a, err := j.From.access()
	if err != nil {
		return line{}, err
	}
	b, err := j.To.access()
	if err != nil {
		return line{}, err
	}
	if err := confine(nil, j.From.Store, j.To.Store); err != nil {
		return line{}, err
	}
	from, err := a.open(ctx, nil)
	if err != nil {
		return line{}, err
	}
	to, err := b.open(ctx, nil)
	if err != nil {
		return line{}, err
	}
	spaces, err := snapshot.Diff(ctx, from, to)
	return line{Diff: &spaces}, err
}

func (j *CopyJob) run(ctx context.Context, notify func(Progress)) (line, error) {
	if j.From.Store.Repository == j.To.Repository {
		// A registry deletes a digest under all of its tags: it would be no second one.
		return line{}, fmt.Errorf("copy snapshot %s: it lies in %s already, and whatever deletes it there deletes it "+
			"under each tag: %w",
			j.From.Digest, j.To.Repository, errdefs.ErrInvalidArgument)
	}
	a, err := j.From.access()
	if err != nil {
		return line{}, err
	}
	to, err := store.Open(j.To)
	if err == nil {
		err = store.Claim(to)
	}
	if err != nil {
		return line{}, err
	}
	if err := confine(nil, j.From.Store, j.To); err != nil {
		return line{}, err
	}
	from, err := j.open(ctx, a)
	if err != nil {
		return line{}, err
	}
	o := snapshot.CopyOptions{Tag: j.Tag, Memory: j.Memory, Progress: func(p snapshot.Progress) {
		notify(Progress{Progress: p})
	}}
	if layout(j.From.Store) == layout(j.To) {
		o.From = j.From.Store.Repository
	}
	copied, err := from.Copy(ctx, to, o)
	return line{Copied: &copied}, err
}

// open answers what can be copied.
func (j *CopyJob) open(ctx context.Context, a access) (interface {
	Copy(ctx context.Context, to store.Store, o snapshot.CopyOptions) (snapshot.Copied, error)
}, error) {
	if j.Golden {
		return snapshot.OpenGolden(ctx, a.store, a.Digest, &a.keys)
	}
	return a.open(ctx, nil)
}

func layout(c store.Config) bool { return strings.HasPrefix(c.Repository, store.LayoutPrefix) }
