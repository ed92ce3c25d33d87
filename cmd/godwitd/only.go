package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/internal/filelock"
	"godwit.dev/godwit/internal/retry"
)

func makeDirs(cfg *config.Config) error {
	for _, dir := range []string{cfg.StateDir, cfg.RunDir} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
	}
	return nil
}

// lockSoon takes a lock, with tries for a moment: who only looks whether a daemon runs here has it for an instant.
func lockSoon(ctx context.Context, f *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	pause := retry.Backoff{Min: lockPause, Max: lockPatience}
	for {
		err := filelock.Lock(f, unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || ctx.Err() != nil {
			return err
		}
		pause.Wait(ctx)
	}
}

// lockPause is the first pause between two tries, which last for lockPatience.
const (
	lockPause    = 10 * time.Millisecond
	lockPatience = time.Second
)

// beOnly refuses a second daemon of one run_dir, of one state_dir, or of one node name. It would unlink the first one's
// socket, drive its VMs, or take its records for its own. The locks are held for life, and end with the process.
func (d *daemon) beOnly(ctx context.Context) error {
	cfg := d.config
	for _, l := range []struct{ path, key, value, remedy string }{
		{filepath.Join(cfg.RunDir, "godwitd.lock"), "run_dir", cfg.RunDir, "another run_dir and node"},
		{filepath.Join(cfg.StateDir, "godwitd.lock"), "state_dir", cfg.StateDir, "another state_dir and node"},
		{filepath.Join(filepath.Dir(cfg.RunDir), "godwitd-"+cfg.Node+".lock"), "node", cfg.Node, "another node name"},
	} {
		f, err := os.OpenFile(l.path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return fmt.Errorf("lock %s: %w", l.path, err)
		}
		d.undo = append(d.undo, f.Close)
		err = lockSoon(ctx, f)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("another godwitd runs here with %s = %q. End it, or give this one %s in its configuration: %w",
				l.key, l.value, l.remedy, errdefs.ErrFailedPrecondition)
		}
		if err != nil {
			return fmt.Errorf("lock %s: %w", l.path, err)
		}
	}
	return nil
}
