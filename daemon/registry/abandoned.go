package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
)

// Abandoned implements engine.Deleter. Repositories of VMs are directories whose names are
// uids of VMs. Other directories are not godwit's, except the one of golden snapshots, which
// belongs to no VM.
func (r *Registry) Abandoned(ctx context.Context, known func(uid string) bool, grace time.Duration,
	dry bool) ([]engine.Freed, error) {
	var all []engine.Freed
	var errs []error
	// Also a node's own store, once it is given another one.
	for _, root := range slices.Compact([]string{r.Config.DefaultStore(), r.Config.Registry.Layout}) {
		if root == "" {
			continue
		}
		freed, err := r.abandonedIn(ctx, root, known, grace, dry)
		all, errs = append(all, freed...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

func (r *Registry) abandonedIn(ctx context.Context, root string, known func(uid string) bool, grace time.Duration,
	dry bool) ([]engine.Freed, error) {
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for repositories in %s: %w", root, err)
	}
	var all []engine.Freed
	var errs []error
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		repository := store.LayoutPrefix + dir
		golden := repository == snapshot.GoldenRepository(store.LayoutPrefix+root)
		if !golden && (!record.IsUID(e.Name()) || known(e.Name())) {
			continue
		}
		l, err := store.NewLayout(dir)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		tidy, after := l.Retire, grace
		if golden { // one may be on its way: a push that takes long holds its packs, but not at once
			tidy, after = l.Collect, max(grace, engine.DefaultLeftovers)
		}
		c, err := tidy(ctx, after, dry)
		if err != nil {
			errs = append(errs, fmt.Errorf("collect files of %s: %w", dir, err))
		}
		if c.Files > 0 {
			all = append(all, engine.Freed{Repository: repository, Files: c.Files, Bytes: c.Bytes})
		}
	}
	return all, errors.Join(errs...)
}
