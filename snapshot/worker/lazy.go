package worker

import (
	"context"
	"errors"
	"fmt"
	"os"

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

	Space  string `json:"space"`
	Table  *File  `json:"table,omitempty"` // becomes the page table, of all spaces
	Socket *File  `json:"socket"`          // brings the userfaultfd; set by LazyFill

	// RAM is called here once the snapshot is open, and answers what is to be filled: a VMM may
	// be started meanwhile. If it fails the job fails.
	RAM func(context.Context) (*WaitingRAM, error) `json:"-"`

	// Whole is called here once all pages are there, and ends the waiting: track.Whole. Pages
	// are brought until it returns. If it fails the job fails.
	Whole func(context.Context) error `json:"-"`

	Memory      int64 `json:"memory,omitempty"`
	Concurrency int   `json:"concurrency,omitempty"`
	Kept
}

// WaitingRAM is RAM whose pages wait. The worker gets Fault, which is closed here then.
type WaitingRAM struct {
	Regions []track.Region
	Fault   *os.File
}

// LazyFill returns when Whole has. What cannot be read is tried again until ctx ends. After an error
// the VM waits for what it lacks: the next LazyFill brings it.
func (c *Client) LazyFill(ctx context.Context, j LazyJob, notify func(Progress)) error {
	own, theirs, err := socketPair()
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	defer own.Close()
	defer theirs.Close()
	j.Socket = Open(theirs)
	ask := j.RAM
	j.RAM = func(ctx context.Context) (*WaitingRAM, error) {
		m, err := ask(ctx)
		if err != nil {
			return nil, err
		}
		return m, errors.Join(sendFile(own, m.Fault), m.Fault.Close())
	}
	whole, end := false, j.Whole
	j.Whole = func(ctx context.Context) error {
		err := end(ctx)
		whole = err == nil
		return err
	}
	files := fileList{}
	files.add(j.Socket)
	files.add(j.Table)
	l, err := c.run(ctx, job{LazyFill: &j}, files, notify)
	if err == nil && (l.Filled == nil || !whole) { // whatever a worker says that a snapshot has taken over
		err = errAnswer
	}
	return err
}

func (j *LazyJob) run(ctx context.Context, kept *cache.Dir, notify func(Progress)) (line, error) {
	s, err := open(ctx, Place{Store: j.Store, Keys: j.Keys, Digest: j.Digest}, j.Want, kept)
	if err != nil {
		return line{}, err
	}
	m, err := j.RAM(ctx)
	if err != nil {
		return line{}, err
	}
	defer m.Fault.Close()
	ram, err := track.NewMissing(m.Regions, m.Fault)
	if err != nil {
		return line{}, err
	}
	return line{Filled: &struct{}{}}, s.FillWaiting(ctx, j.Space, ram, snapshot.FillOptions{
		Memory: j.Memory, Concurrency: j.Concurrency, Table: osFile(j.Table), Repository: j.Store.Repository,
		Progress: func(p snapshot.Progress) { notify(Progress{Progress: p}) },
	}, j.Whole)
}

// ram has the one at the other end call LazyJob.RAM.
func (r *remote) ram(ctx context.Context, socket *File) (*WaitingRAM, error) {
	r.out.write(line{RAM: true})
	p, err := r.answer(ctx)
	if err != nil {
		return nil, err
	}
	fault, err := receiveFile(osFile(socket))
	return &WaitingRAM{Regions: p.Regions, Fault: fault}, err
}

// whole has the one at the other end call LazyJob.Whole.
func (r *remote) whole(ctx context.Context) error {
	r.out.write(line{Whole: true})
	return r.done(ctx)
}
