package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"godwit.dev/godwit/internal/dircache"
)

const (
	refusedFor    = time.Hour // a template that failed is not made again
	requestExpiry = 7 * 24 * time.Hour
)

// Due answers the shapes that were asked for often enough and may be made.
func (s Store) Due(after int) ([]Shape, error) {
	entries, err := os.ReadDir(filepath.Join(s.Dir, requestsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list requests for templates: %w", err)
	}
	var due []Shape
	for _, e := range entries {
		shape, times, err := s.requested(e.Name())
		if err != nil || times < after || s.refused(e.Name()) {
			continue
		}
		if _, err := os.Stat(s.cache().Path(e.Name())); err == nil {
			continue // there is one: it was made meanwhile
		}
		due = append(due, shape)
	}
	return due, nil
}

// requested answers what was asked for under the key, and how often.
func (s Store) requested(key string) (shape Shape, times int, err error) {
	data, err := os.ReadFile(filepath.Join(s.Dir, requestsDir, key))
	if err != nil {
		return shape, 0, err
	}
	first, _, _ := bytes.Cut(data, []byte("\n"))
	if err := json.Unmarshal(first, &shape); err != nil || shape.Key() != key {
		return shape, 0, errors.Join(damaged("request "+key), s.forget(key))
	}
	return shape, bytes.Count(data, []byte("\n")), nil
}

// Forget what was asked for: it is of no use any more.
func (s Store) Forget(shape Shape) error { return s.forget(shape.Key()) }

// forget a request: it was fulfilled, or cannot be.
func (s Store) forget(key string) error {
	err := os.Remove(filepath.Join(s.Dir, requestsDir, key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// admit takes back that a shape is refused.
func (s Store) admit(key string) error {
	err := os.Remove(filepath.Join(s.Dir, refusedDir, key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (s Store) refused(key string) bool {
	info, err := os.Stat(filepath.Join(s.Dir, refusedDir, key))
	return err == nil && time.Since(info.ModTime()) < refusedFor
}

// Sweep removes what crashed makers have left, and templates that current says are none for this
// node any more. It then removes, least recently used first, what is more than the bounds. The
// caller has the lock.
func (s Store) Sweep(bounds dircache.Bounds, current func(Shape) bool) error {
	err := s.cache().Evict(bounds, func(key string) bool {
		h, bad := readHead(s.cache().Path(key))
		return bad == nil && current(h.Shape)
	})
	s.expire(requestsDir, requestExpiry)
	s.expire(refusedDir, refusedFor)
	if err != nil {
		return fmt.Errorf("sweep templates: %w", err)
	}
	return nil
}

func (s Store) expire(dir string, age time.Duration) {
	entries, _ := os.ReadDir(filepath.Join(s.Dir, dir))
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > age {
			_ = os.Remove(filepath.Join(s.Dir, dir, e.Name()))
		}
	}
}
