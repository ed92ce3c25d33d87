package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"godwit.dev/godwit/integration/images"
)

const (
	fleetSize   = 20
	fleetRAM    = 128 // MiB each
	fleetAtOnce = 4   // started and removed side by side
)

// fleet looks at the memory of godwit's own processes while many VMs run on the node.
func (b *bench) fleet(ctx context.Context) error {
	if b.round == warmup {
		return nil // memory has nothing to warm
	}
	name := func(i int) string { return b.name(fmt.Sprintf("fleet%d", i)) }
	err := eachOf(fleetSize, func(i int) error {
		_, err := b.node.RunCtr(ctx, "run", "-d", "--runtime", runtimeName,
			"--annotation", fmt.Sprintf("godwit.dev/memory=%dMiB", fleetRAM), images.Busybox, name(i), "/bin/sleep", "100000")
		return err
	})
	if err != nil {
		return err
	}
	pids, err := b.shims()
	if err != nil {
		return err
	}
	if len(pids) != fleetSize {
		return fmt.Errorf("%d shims of %d VMs", len(pids), fleetSize)
	}
	if err := errors.Join(b.noteMemory("fleet.shim", pids...),
		b.noteMemory("fleet.godwitd", b.node.Godwitd.PID())); err != nil {
		return err
	}
	return eachOf(fleetSize, func(i int) error { return b.remove(ctx, name(i)) })
}

// eachOf calls do for 0 to n-1, a few at a time, and answers what failed.
func eachOf(n int, do func(i int) error) error {
	errs, slots := make([]error, n), make(chan struct{}, fleetAtOnce)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(i)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
