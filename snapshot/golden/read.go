package golden

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/internal/dircache"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/worker"
)

// readBound is how long a hibernate, or who makes one, waits for a golden snapshot that this
// node has not read yet.
const readBound = time.Minute

func (s *Shelf) tables() Tables { return TablesOf(s.Config) }

func (s *Shelf) forget(hex string) error { return s.tables().Forget(hex) }

// Ready makes the table of a golden snapshot, unless it lies there. Who comes while another
// one makes it waits for that one, and no longer than it would read itself.
func (s *Shelf) Ready(ctx context.Context, dgst string) error {
	d := digest.Digest(dgst)
	if err := d.Validate(); err != nil {
		return fmt.Errorf("golden snapshot %q: %w", dgst, err)
	}
	if s.there(d) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.patience, readBound))
	defer cancel()
	leave, err := s.enter(ctx, d)
	if err != nil {
		return err
	}
	defer leave()
	if s.there(d) {
		return nil
	}
	return s.read(ctx, d)
}

// there reports whether a table is, and notes its use.
func (s *Shelf) there(d digest.Digest) bool {
	l, err := s.tables().Use(d.Encoded())
	return err == nil && l.Close() == nil
}

// enter waits until no other call reads the snapshot.
func (s *Shelf) enter(ctx context.Context, d digest.Digest) (leave func(), err error) {
	for {
		s.mu.Lock()
		other, mine := s.reading[d], make(chan struct{})
		if other == nil {
			if s.reading == nil {
				s.reading = map[digest.Digest]chan struct{}{}
			}
			s.reading[d] = mine
		}
		s.mu.Unlock()
		if other == nil {
			return func() {
				s.mu.Lock()
				delete(s.reading, d)
				s.mu.Unlock()
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

// read has a worker make the table.
func (s *Shelf) read(ctx context.Context, d digest.Digest) error {
	repository, err := s.Repository()
	if err != nil {
		return err
	}
	begun := time.Now()
	var info *snapshot.GoldenInfo
	err = s.tables().Make(d.Encoded(), func(f *os.File) (err error) {
		info, err = s.Worker().Golden(ctx, worker.GoldenJob{
			Store: s.Store(repository), Keys: worker.KeysOf(s.Config), Digest: d, Table: worker.Open(f),
			Memory: int64(s.Config.Worker.Memory),
		})
		return err
	})
	if err != nil {
		return err
	}
	slog.InfoContext(ctx, "golden snapshot read", "digest", d, "image", info.Name, "took", time.Since(begun))
	s.Tidy(ctx)
	return nil
}

// Tidy removes the tables that are too many.
func (s *Shelf) Tidy(ctx context.Context) {
	cfg := s.Config.Template.Image
	if err := s.tables().Keep(dircache.Bounds{Count: cfg.Max, Bytes: uint64(cfg.MaxSize)}); err != nil {
		slog.WarnContext(ctx, "evict tables of golden snapshots", "error", err) // the next one tries again
	}
}

// TakeOver makes the tables that the release before has left this one's own.
func (s *Shelf) TakeOver(ctx context.Context) {
	n, err := s.tables().TakeOver()
	if n > 0 {
		slog.WarnContext(ctx, "tables of golden snapshots lie where the release before has put them: they are taken over, "+
			"which the next release does not do",
			"directory", s.Config.OldGoldenDir(), "tables", n)
	}
	if err != nil {
		slog.WarnContext(ctx, "a table of the release before is made anew", "error", err)
	}
	s.Tidy(ctx)
}
