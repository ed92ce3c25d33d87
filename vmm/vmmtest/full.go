package vmmtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm/process"
)

// FullPool tells what happens to a VM whose RAM lies on a tmpfs that runs full: its process
// ends, not clean, and leaves nothing but what the caller owns.
func FullPool(ctx context.Context, env Env) (err error) {
	pool, err := os.MkdirTemp(env.Dir, "pool")
	if err != nil {
		return err
	}
	if err := unix.Mount("godwit-full", pool, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", env.Memory/16)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Unmount(pool, 0)) }()
	return onBench(ctx, env, func(ctx context.Context, b *bench) error { return b.fillPool(ctx, pool) })
}

func (b *bench) fillPool(ctx context.Context, pool string) error {
	v, err := b.start(ctx, func(v *vm) error {
		ram, err := os.Create(filepath.Join(pool, "ram"))
		if err != nil {
			return err
		}
		v.files = append([]io.Closer{ram}, v.files...)
		v.cfg.RAM = ram
		return errors.Join(ram.Truncate(int64(b.env.Memory)), ram.Chown(b.env.User, -1))
	})
	if err != nil { // a VMM that loads the kernel before it runs
		if !errdefs.IsUnavailable(err) {
			return fmt.Errorf("start: got %w, want Unavailable", err)
		}
		return noSockets(b.vms[0].cfg.Dir)
	}
	err = v.Resume(ctx)                    // it may end before it has answered
	if errdefs.IsFailedPrecondition(err) { // it could not load the kernel
		return errors.Join(v.Kill(ctx), noSockets(v.cfg.Dir))
	}
	select {
	case <-v.Done():
	case <-ctx.Done():
		return fmt.Errorf("the VM goes on (resume: %v): %w", err, ctx.Err())
	}
	if exit := v.Exit(); exit.Clean || exit.Status != 128+int(unix.SIGBUS) || exit.Reason != process.NoRoom {
		return fmt.Errorf("exit: %+v (resume: %v)", exit, err)
	}
	return noSockets(v.cfg.Dir)
}
