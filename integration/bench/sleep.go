package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/integration/observer"
)

const (
	beaconEvery = 5 * time.Millisecond
	settle      = time.Second
	noise       = 8 // MiB of random memory in every VM: what does not compress
	mib         = 1 << 20
)

// sleep times hibernate and wake of a VM with so many MiB of RAM. All sizes are made
// equally resident: the kernel's own tables grow with RAM, so that smaller VMs hold
// memory that compresses like those.
func (b *bench) sleep(ctx context.Context, size int) error {
	vm := b.name(fmt.Sprintf("sleep%d", size))
	name := func(s string) string { return sleepName(size, s) }
	if err := b.bootProbe(ctx, vm, size); err != nil {
		return err
	}
	compress, expand, bytes, err := b.baseline(ctx)
	if err != nil {
		return err
	}
	b.note(name("compress_rate"), bytes/compress/1e9)
	b.note(name("expand_rate"), bytes/expand/1e9)
	_, resident, err := b.node.RAM()
	if err != nil {
		return err
	}
	if b.round == warmup {
		b.calibrate(size, int(resident/mib))
	}
	b.note(name("resident"), float64(resident)/mib)
	used, err := b.hibernate(ctx, vm, name)
	if err != nil {
		return err
	}
	b.note(name("hibernate_rate"), float64(resident)/used/1e9)
	if used, err = b.wake(ctx, vm, name); err != nil {
		return err
	}
	b.note(name("wake_rate"), float64(resident)/used/1e9)
	if size == sizes[0] {
		if err := b.noteMemory("rss.godwitd", b.node.Godwitd.PID()); err != nil {
			return err
		}
	}
	return b.remove(ctx, vm)
}

// calibrate makes the smaller VMs as resident as the largest, which comes last.
func (b *bench) calibrate(size, resident int) {
	b.ballast[size] = resident
	if size != sizes[len(sizes)-1] {
		return
	}
	for s, r := range b.ballast {
		b.ballast[s] = max(0, resident-r)
	}
	b.say("each VM will have %d MiB resident", resident)
}

func (b *bench) bootProbe(ctx context.Context, vm string, size int) error {
	b.watch.Mark(vm)
	ballast := 0
	if b.round != warmup {
		ballast = b.ballast[size]
	}
	if _, err := b.node.RunCtr(ctx, "run", "-d", "--cni", "--runtime", runtimeName,
		"--annotation", fmt.Sprintf("godwit.dev/memory=%dMiB", size), images.Probe, vm,
		"/bin/probe", "-beacon", net.JoinHostPort(harness.Gateway, beaconPort), "-interval", beaconEvery.String(),
		"-fill", fmt.Sprint(noise), "-soft", fmt.Sprint(ballast)); err != nil {
		return err
	}
	if _, err := b.watch.After(ctx, vm); err != nil {
		return err
	}
	return observer.Pause(ctx, settle)
}

// hibernate answers the CPU seconds of the worker.
func (b *bench) hibernate(ctx context.Context, vm string, name func(string) string) (float64, error) {
	w := b.watchWorkers()
	begun := time.Now()
	out, err := b.node.RunGodwit(ctx, "hibernate", "-o", "json", vm)
	used := w.seconds()
	if err != nil {
		return 0, err
	}
	last := b.watch.Latest()
	push, err := b.h.Stored(begun)
	if err != nil {
		return 0, fmt.Errorf("hibernate %s: %w", vm, err)
	}
	var own struct {
		Figures struct {
			PauseMS float64 `json:"pauseMs"`
		} `json:"figures"`
	}
	if err := json.Unmarshal([]byte(out), &own); err != nil {
		return 0, fmt.Errorf("hibernate %s: %w", vm, err)
	}
	b.note(name("pause"), ms(push.LastBlob.Sub(last.At)))
	b.note(name("pause_own"), own.Figures.PauseMS)
	b.note(name("durable"), ms(push.Manifest.Sub(push.LastBlob)))
	return used, nil
}

// wake answers the CPU seconds of the workers.
func (b *bench) wake(ctx context.Context, vm string, name func(string) string) (float64, error) {
	b.watch.Mark(vm)
	w := b.watchWorkers()
	begun := time.Now()
	_, err := b.node.RunGodwit(ctx, "wake", vm)
	used := w.seconds()
	if err != nil {
		return 0, err
	}
	sign, err := b.watch.After(ctx, vm)
	if err != nil {
		return 0, err
	}
	b.note(name("wake"), ms(sign.At.Sub(begun)))
	return used, nil
}

// sending answers a function for what the node has sent over the wire since sending was called. It says too when the
// registry had what was pushed since begun.
func (b *bench) sending(ctx context.Context) (func(begun time.Time) (float64, harness.Stored, error), error) {
	before, err := b.node.Sent(ctx)
	return func(begun time.Time) (float64, harness.Stored, error) {
		after, err := b.node.Sent(ctx)
		if err != nil {
			return 0, harness.Stored{}, err
		}
		push, err := b.h.Stored(begun)
		return float64(after - before), push, err
	}, err
}
