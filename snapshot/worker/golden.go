package worker

import (
	"context"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/cache"
	"godwit.dev/godwit/snapshot/store"
)

// GoldenJob makes the page table of a golden snapshot.
type GoldenJob struct {
	Store  store.Config  `json:"store"`
	Keys   Keys          `json:"keys,omitzero"`
	Digest digest.Digest `json:"digest"`
	Table  *File         `json:"table"` // empty, owner-only

	Memory      int64 `json:"memory,omitempty"`
	Concurrency int   `json:"concurrency,omitempty"`
	Kept
}

// Golden reads a golden snapshot whole. After an error the table must not be used.
func (c *Client) Golden(ctx context.Context, j GoldenJob) (*snapshot.GoldenInfo, error) {
	files := fileList{}
	files.add(j.Table)
	l, err := c.run(ctx, job{Golden: &j}, files, nil)
	if err == nil && l.Golden == nil {
		err = errAnswer
	}
	return l.Golden, err
}

func (j *GoldenJob) run(ctx context.Context, kept *cache.Dir) (line, error) {
	a, err := Place{Store: j.Store, Keys: j.Keys, Digest: j.Digest}.access()
	if err != nil {
		return line{}, err
	}
	if err := confine(kept, j.Store); err != nil {
		return line{}, err
	}
	g, err := snapshot.OpenGolden(ctx, withCache(a.store, kept), j.Digest, &a.keys)
	if err != nil {
		return line{}, err
	}
	err = g.Table(ctx, osFile(j.Table), snapshot.FillOptions{Memory: j.Memory, Concurrency: j.Concurrency,
		Repository: j.Store.Repository})
	return line{Golden: &g.Info}, err
}

// goldenPages are those of a golden snapshot, for a push.
type goldenPages struct {
	table   *snapshot.Table
	configs []store.Config
	source  func(repository string) (store.Store, error)
}

// golden opens them. What is of no use is left aside, and said why.
func (j *PushJob) golden(keys *snapshot.Keys) (g goldenPages, why string) {
	if j.Golden == nil {
		return g, ""
	}
	table, err := snapshot.OpenTable(j.Golden.File)
	if err != nil {
		return g, err.Error()
	}
	switch on := keys.Locks.On(); {
	case on && !table.Fits(true):
		return g, "it is not sealed, and this node seals what it stores"
	case !on && !table.Fits(false):
		return g, "it is sealed, and this node does not seal what it stores"
	}
	cfg := j.Store
	cfg.Repository = table.Repository()
	st, err := store.Open(cfg) // credentials are read while this process may
	if err != nil {
		return g, err.Error()
	}
	g.table, g.configs = table, []store.Config{cfg}
	g.source = func(string) (store.Store, error) { return st, nil }
	return g, ""
}

// disks of the image may be taken over in addition to the pages.
func (g *goldenPages) disks(src *snapshot.Source) {
	for i := range src.Disks {
		if d := &src.Disks[i]; d.From == "" && g.table != nil {
			d.From = g.table.Repository()
		}
	}
}
