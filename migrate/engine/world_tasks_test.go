package engine

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// tasks is the same node as its containerd.
type tasks machine

func (k *tasks) Create(ctx context.Context, _ *nodev1.VM, order Restore) error {
	return k.do(ctx, "Create", func() error {
		if !k.blobs[order.Intent.Digest] {
			return fmt.Errorf("create: %w", errdefs.ErrNotFound)
		}
		if k.state[k.node] == runs {
			return fmt.Errorf("create: %w", errdefs.ErrAlreadyExists)
		}
		k.arrival = &machinev1.Ref{Operation: order.Intent.Operation, Attempt: order.Intent.Attempt}
		if k.pod { // CRI makes it, and has given it up by the time that the waits are over
			if k.awaits--; k.awaits < 0 {
				k.set(k.node, fenced)
			}
			return fmt.Errorf("create: it waits for CRI: %w", errdefs.ErrUnavailable)
		}
		k.set(k.node, created)
		return nil
	})
}

// Start commits as a shim does, before the VM runs.
func (k *tasks) Start(ctx context.Context, _ *nodev1.VM) error {
	return k.do(ctx, "Start", func() error {
		if k.state[k.node] == runs {
			return nil
		}
		if k.state[k.node] != created {
			return fmt.Errorf("start: %w", errdefs.ErrNotFound)
		}
		rec, err := k.records.Get(ctx, &nodev1.GetRequest{Vm: vm})
		if err != nil {
			return err
		}
		op := rec.GetOperation()
		if rec, err = k.records.Commit(ctx, &nodev1.CommitRequest{Vm: vm, Operation: op.GetId(), Attempt: op.GetAttempt(),
			Generation: op.GetGeneration(), Owner: &nodev1.Owner{Node: k.node}}); err != nil {
			return err
		}
		k.gens[k.node] = rec.GetGeneration()
		(*machine)(k).deleteIf(ctx, k.removed)
		if k.removed || k.startFails != nil {
			return fmt.Errorf("start: %w", errdefs.ErrInternal)
		}
		k.set(k.node, runs)
		return nil
	})
}

func (k *tasks) Running(ctx context.Context, _ *nodev1.VM) (running bool, err error) {
	err = k.do(ctx, "Running", func() error { running = k.state[k.node] == runs; return nil })
	return running, err
}

func (k *tasks) Undo(ctx context.Context, _ *nodev1.VM, _ Restore) error {
	return k.do(ctx, "Undo", func() error {
		if k.state[k.node] == runs {
			k.broken = append(k.broken, "undo of a VM that runs")
		}
		k.set(k.node, gone)
		return nil
	})
}

func (k *tasks) Clear(ctx context.Context, _ *nodev1.VM, _ Restore) error {
	return k.do(ctx, "Clear", func() error {
		if s := k.state[k.node]; s != fenced && s != gone {
			return stale("clear: VM is %s", s)
		}
		k.set(k.node, gone)
		return nil
	})
}
