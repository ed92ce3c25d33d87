package incarnation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/migrate/controller"
)

// Watermark is what a controller remembers of its store, in its state_dir: an old copy of the store is not
// as far as that.
type Watermark struct {
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

// StoreOf names the store of a configuration.
func StoreOf(cfg *config.Config) string {
	if len(cfg.Controller.Etcd.Endpoints) > 0 {
		return "etcd " + cfg.Controller.Etcd.Prefix
	}
	return "file"
}

// OpenWatermark reads what is remembered in a directory, and compares the store of that name with it.
func OpenWatermark(ctx context.Context, dir, store string, whole *controller.Incarnations) (*Watermark, error) {
	m := &Watermark{path: filepath.Join(dir, "store-seen.json"), store: store, whole: whole}
	var known marked
	data, err := os.ReadFile(m.path)
	if err == nil {
		err = json.Unmarshal(data, &known)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read %s, which says how far the store of the records was (remove it if the store was not "+
			"put back from a copy): %w", m.path, err)
	}
	if known.Store == m.store {
		m.seen = known.Mark
	}
	return m, m.Maintain(ctx)
}

// Maintain remembers how far the store is now.
func (m *Watermark) Maintain(ctx context.Context) error {
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

// closeBound is how long the store is waited for at the end of the daemon.
const closeBound = 5 * time.Second

// Close remembers it for the next start.
func (m *Watermark) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeBound)
	defer cancel()
	if err := m.Maintain(ctx); err != nil {
		slog.Warn("how far the store of the records is was not remembered", "error", err)
	}
	return nil
}
