package shim

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/snapshot/track"
)

// ordered is the word on the restore that counts, and whose it is: the container's own before the
// node's.
func (c *creation) ordered() (mode, by string) {
	if m := c.bundle.Restore; m != "" {
		return m, "annotation godwit.dev/restore"
	}
	return c.host.Config.Worker.Restore, "worker.restore"
}

// chooseMode decides when RAM comes, of which the snapshot has so many bytes. Where that is to be while the
// VM runs, and cannot be, the wake is refused: no other mode takes the place of an order.
func (c *creation) chooseMode(ctx context.Context, ram uint64) error {
	if c.decision.Action != record.Restore {
		return nil
	}
	mode, reason := c.ordered()
	switch mode {
	case config.RestoreAuto:
		mode, reason = c.defaultMode(ctx, ram)
	case config.RestoreLazy:
		if err := c.obstacleToLazy(ctx); err != nil {
			return fmt.Errorf("restore %s lazily: %w; set worker.restore or annotation godwit.dev/restore to eager or auto: %w",
				c.source(), err, errdefs.ErrFailedPrecondition)
		}
	}
	c.next.Restored = &journal.Restored{Mode: mode, Reason: reason}
	c.vm.log.Info("restore mode", "mode", mode, "reason", reason)
	return nil
}

// defaultMode is the mode of a wake that was not ordered by mode, and why. A successor finds it in the journal: it is
// not asked again.
func (c *creation) defaultMode(ctx context.Context, ram uint64) (mode, reason string) {
	has := fmt.Sprintf("auto: %d MiB of RAM", ram>>20)
	if ram < uint64(config.LazyFrom) {
		return config.RestoreEager, fmt.Sprintf("%s, fewer than %d", has, config.LazyFrom>>20)
	}
	if err := c.obstacleToLazy(ctx); err != nil {
		return config.RestoreEager, "auto: " + err.Error()
	}
	return config.RestoreLazy, has
}

func (c *creation) obstacleToLazy(ctx context.Context) error {
	sp := c.snapshot.Spec
	if err := smallPages(c.host.Config.RAMDir); err != nil {
		return err
	}
	switch choice := c.host.chooseTracking(ctx); {
	case !c.waits:
		return fmt.Errorf("VMM %s reads RAM before it can wait for it", sp.VMM.Name)
	case choice.Way != track.UFFD:
		return fmt.Errorf("RAM is tracked by %s (worker.tracking), not by uffd: %s", choice.Way, choice.Reason)
	case c.host.Lazy == nil:
		return errors.New("this build cannot")
	}
	if err := c.host.Lazy.Probe(ctx); err != nil {
		return fmt.Errorf("this kernel cannot: %w", err)
	}
	return nil
}
