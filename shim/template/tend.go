package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	refusedFor = time.Hour // a template that failed is not made again
	wishedFor  = 7 * 24 * time.Hour
)

// Due answers the shapes that were wished for often enough and may be made.
func (s Store) Due(after int) ([]Shape, error) {
	entries, err := os.ReadDir(filepath.Join(s.Dir, wishesDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list wishes for templates: %w", err)
	}
	var due []Shape
	for _, e := range entries {
		shape, times, err := s.wished(e.Name())
		if err != nil || times < after || s.refused(e.Name()) {
			continue
		}
		if _, err := os.Stat(s.path(shape)); err == nil {
			continue // there is one: it was made meanwhile
		}
		due = append(due, shape)
	}
	return due, nil
}

// wished answers what was wished for under the key, and how often.
func (s Store) wished(key string) (shape Shape, times int, err error) {
	data, err := os.ReadFile(filepath.Join(s.Dir, wishesDir, key))
	if err != nil {
		return shape, 0, err
	}
	first, _, _ := bytes.Cut(data, []byte("\n"))
	if err := json.Unmarshal(first, &shape); err != nil || shape.Key() != key {
		return shape, 0, errors.Join(damaged("wish "+key), s.forget(key))
	}
	return shape, bytes.Count(data, []byte("\n")), nil
}

// Forget what was wished for: it is of no use any more.
func (s Store) Forget(shape Shape) error { return s.forget(shape.Key()) }

// forget a wish: it was fulfilled, or cannot be.
func (s Store) forget(key string) error {
	err := os.Remove(filepath.Join(s.Dir, wishesDir, key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (s Store) refused(key string) bool {
	info, err := os.Stat(filepath.Join(s.Dir, refusedDir, key))
	return err == nil && time.Since(info.ModTime()) < refusedFor
}

// Limits of a Store.
type Limits struct {
	Count int
	Bytes uint64
}

// Sweep removes what crashed makers have left, templates that current says are none for
// this node any more, and, least recently used first, what is more than the limits. Only
// one may sweep or make at a time.
func (s Store) Sweep(limits Limits, current func(Shape) bool) error {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep templates: %w", err)
	}
	type kept struct {
		key  string
		used time.Time
		size uint64
	}
	var all []kept
	var errs []error
	for _, e := range entries {
		name, path := e.Name(), filepath.Join(s.Dir, e.Name())
		switch {
		case name == wishesDir || name == refusedDir || name == lockFile:
		case strings.HasPrefix(name, passing):
			errs = append(errs, os.RemoveAll(path))
		default:
			info, err := e.Info()
			h, bad := readHead(path)
			if err != nil || bad != nil || !current(h.Shape) {
				errs = append(errs, s.remove(name))
				continue
			}
			all = append(all, kept{name, info.ModTime(), h.RAM.bytes()})
		}
	}
	slices.SortFunc(all, func(a, b kept) int { return b.used.Compare(a.used) })
	total := uint64(0)
	for i, k := range all {
		if total += k.size; i >= limits.Count || total > limits.Bytes {
			errs = append(errs, s.remove(k.key))
			total -= k.size
		}
	}
	s.expire(wishesDir, wishedFor)
	s.expire(refusedDir, refusedFor)
	return errors.Join(errs...)
}

func (s Store) expire(dir string, age time.Duration) {
	entries, _ := os.ReadDir(filepath.Join(s.Dir, dir))
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > age {
			_ = os.Remove(filepath.Join(s.Dir, dir, e.Name()))
		}
	}
}
