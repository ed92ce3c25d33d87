package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/migrate/controller"
)

// mark is what a controller remembers of its store, in its state_dir: an old copy of the store is not
// as far as that.
type mark struct {
	path  string
	store string // where it is: a mark of another store says nothing
	seen  controller.Mark
	whole interface {
		Compare(ctx context.Context, seen controller.Mark) (controller.Mark, error)
	}
}

// marked is the file.
type marked struct {
	Store string `json:"store"`
	controller.Mark
}

// storeOf names the store of a configuration.
func storeOf(cfg *config.Config) string {
	if len(cfg.Controller.Etcd.Endpoints) > 0 {
		return "etcd " + cfg.Controller.Etcd.Prefix
	}
	return "file"
}

// openMark reads what is remembered, and compares the store with it.
func openMark(ctx context.Context, cfg *config.Config, whole *controller.Incarnations) (*mark, error) {
	m := &mark{path: filepath.Join(cfg.StateDir, "store-seen.json"), store: storeOf(cfg), whole: whole}
	var known marked
	data, err := os.ReadFile(m.path)
	if err == nil {
		err = json.Unmarshal(data, &known)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read %s, which says how far the store of the records was (remove it if the store was not put back from a copy): %w", m.path, err)
	}
	if known.Store == m.store {
		m.seen = known.Mark
	}
	return m, m.tend(ctx)
}

// tend remembers how far the store is now.
func (m *mark) tend(ctx context.Context) error {
	now, err := m.whole.Compare(ctx, m.seen)
	if err != nil || now == m.seen {
		return err
	}
	data, err := json.Marshal(marked{m.store, now})
	if err == nil {
		err = durable.WriteFile(m.path, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("remember how far the store of the records is: %w", err)
	}
	m.seen = now
	return nil
}

// close remembers it for the next start.
func (m *mark) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), nameBound)
	defer cancel()
	if err := m.tend(ctx); err != nil {
		slog.Warn("how far the store of the records is was not remembered", "error", err)
	}
	return nil
}
