package worker

import (
	"context"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/cache"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/track"
)

// LazyJob brings the RAM of a VM that runs: track.Expect has its pages wait.
type LazyJob struct {
	Store  store.Config  `json:"store"`
	Keys   Keys          `json:"keys,omitzero"`
	Digest digest.Digest `json:"digest"`
	Want   *snapshot.Ref `json:"want,omitempty"`

	Space   string         `json:"space"`
	Regions []track.Region `json:"regions"`
	Fault   *File          `json:"fault"`
	Table   *File          `json:"table,omitempty"` // becomes the page table, of all spaces

	// Whole is called here once all pages are there, and ends the waiting: track.Whole. Pages
	// are brought until it returns. If it fails the job fails.
	Whole func(context.Context) error `json:"-"`

	Memory      int64 `json:"memory,omitempty"`
	Concurrency int   `json:"concurrency,omitempty"`
	Kept
}

// LazyFill returns when Whole has. What cannot be read is tried again until ctx ends. After an error
// the VM waits for what it lacks: the next LazyFill brings it.
func (c *Client) LazyFill(ctx context.Context, j LazyJob, notify func(Progress)) error {
	files := fileList{}
	files.add(j.Fault)
	files.add(j.Table)
	l, err := c.run(ctx, job{LazyFill: &j}, files, notify)
	if err == nil && l.Filled == nil {
		err = errAnswer
	}
	return err
}

func (j *LazyJob) run(ctx context.Context, kept *cache.Dir, notify func(Progress)) (line, error) {
	s, err := open(ctx, Place{Store: j.Store, Keys: j.Keys, Digest: j.Digest}, j.Want, kept)
	if err != nil {
		return line{}, err
	}
	ram, err := track.NewMissing(j.Regions, osFile(j.Fault))
	if err != nil {
		return line{}, err
	}
	return line{Filled: &struct{}{}}, s.FillWaiting(ctx, j.Space, ram, snapshot.FillOptions{
		Memory: j.Memory, Concurrency: j.Concurrency, Table: osFile(j.Table), Repository: j.Store.Repository,
		Progress: func(p snapshot.Progress) { notify(Progress{Progress: p}) },
	}, j.Whole)
}

// whole has the one at the other end call LazyJob.Whole.
func (r *remote) whole(ctx context.Context) error {
	r.out.write(line{Whole: true})
	p, err := r.next(ctx)
	if err == nil && p.Error != nil {
		return p.Error
	}
	return err
}
