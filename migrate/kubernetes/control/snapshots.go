package control

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// snapshots asks whether the store takes a snapshot, which is what a controller without VMs wants to know. Nodes make,
// read and delete them.
type snapshots struct {
	config *config.Config
	pods   PodsOfNodes // nil: no class has a login
}

var _ engine.Snapshots = snapshots{}

// Accepts implements engine.Snapshots.
func (s snapshots) Accepts(ctx context.Context, repository string) error {
	cfg := store.ConfigOf(s.config, repository)
	if s.pods != nil {
		var err error
		if cfg, err = cfg.WithLogin(ctx, ownLogins{s.pods}, nodev1.Use_USE_STORE); err != nil {
			return err
		}
	}
	st, err := store.Open(cfg)
	if err != nil {
		return err
	}
	return snapshot.Accepts(ctx, st)
}

func missing(key, what string) error {
	return fmt.Errorf("%s is empty: it is %s: %w", key, what, errdefs.ErrInvalidArgument)
}

func notHere(call string) error {
	return fmt.Errorf("%s: a controller without VMs does nothing with snapshots: %w", call, errdefs.ErrNotImplemented)
}

// Exists implements engine.Snapshots.
func (snapshots) Exists(context.Context, string, string) (bool, error) {
	return false, notHere("exists")
}

// Readable implements engine.Snapshots.
func (snapshots) Readable(context.Context, string, string) error { return notHere("readable") }

// Reaches implements engine.Deleter.
func (snapshots) Reaches(context.Context, *nodev1.SnapshotRef) (bool, error) { return false, nil }

// Drop implements engine.Deleter.
func (snapshots) Drop(context.Context, string, string, string, string) error { return notHere("drop") }

// Leftovers implements engine.Deleter.
func (snapshots) Leftovers(context.Context, string) ([]engine.Leftover, error) {
	return nil, notHere("leftovers")
}

// Collect implements engine.Deleter.
func (snapshots) Collect(context.Context, string, time.Duration, bool) (int, uint64, error) {
	return 0, 0, notHere("collect")
}

// Abandoned implements engine.Deleter.
func (snapshots) Abandoned(context.Context, func(string) bool, time.Duration, bool) ([]engine.Freed, error) {
	return nil, notHere("abandoned")
}
