package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot/worker"
)

// ready makes the table of a golden snapshot, unless it lies there. Who comes while another
// one makes it waits for that one, and no longer than it would read itself.
func (g *golden) ready(ctx context.Context, d digest.Digest) error {
	path := g.Config.GoldenTable(d.Encoded())
	if used(path) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(g.patience, goldenBound))
	defer cancel()
	leave, err := g.enter(ctx, d)
	if err != nil {
		return err
	}
	defer leave()
	if used(path) {
		return nil
	}
	return g.read(ctx, d, path)
}

// used keeps a table, if there is one, from those that were not used for longest.
func used(path string) bool {
	now := time.Now()
	return os.Chtimes(path, now, now) == nil
}

// enter waits until nobody else reads the snapshot.
func (g *golden) enter(ctx context.Context, d digest.Digest) (leave func(), err error) {
	for {
		g.making.Lock()
		other, mine := g.reading[d], make(chan struct{})
		if other == nil {
			if g.reading == nil {
				g.reading = map[digest.Digest]chan struct{}{}
			}
			g.reading[d] = mine
		}
		g.making.Unlock()
		if other == nil {
			return func() {
				g.making.Lock()
				delete(g.reading, d)
				g.making.Unlock()
				close(mine)
			}, nil
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another one that reads golden snapshot %s: %w", d, context.Cause(ctx))
		}
	}
}

// read has a worker make the table: the file has its name when it is whole.
func (g *golden) read(ctx context.Context, d digest.Digest, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	begun := time.Now()
	info, err := g.Worker().Golden(ctx, worker.GoldenJob{
		Store: g.StoreConfig(g.repository()), Keys: worker.KeysOf(g.Config), Digest: d, Table: worker.Open(f), Memory: int64(g.Config.Worker.Memory),
	})
	if err == nil {
		err = f.Sync() // a table that is short after a power loss would never be made again
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	slog.InfoContext(ctx, "golden snapshot read", "digest", d, "image", info.Name, "took", time.Since(begun))
	g.forget()
	return nil
}

// forget removes the tables that were not used for longest.
func (g *golden) forget() {
	entries, err := os.ReadDir(g.Config.GoldenDir())
	if err != nil {
		return // the next one tries again
	}
	var files []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".table") {
			files = append(files, filepath.Join(g.Config.GoldenDir(), e.Name()))
		}
	}
	if len(files) <= mostTables {
		return
	}
	last := func(path string) time.Time {
		if st, err := os.Stat(path); err == nil {
			return st.ModTime()
		}
		return time.Time{}
	}
	slices.SortFunc(files, func(a, b string) int { return last(b).Compare(last(a)) })
	for _, path := range files[mostTables:] {
		_ = os.Remove(path) // the next one tries again
	}
}
