// Package bench measures godwit together with what it is built from: bare QEMU, zstd, ctr without a guest. What it says
// was shown by the guest, the wire or the kernel. Every figure has one value a round, and its baseline is measured in
// the same round.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/observer"
	"godwit.dev/godwit/vmm"
)

const (
	runtimeName = "io.containerd.godwit.v1"
	mark        = "godwit-bench-up" // the line that ends a boot
	beaconPort  = "9999"
	stepTimeout = 10 * time.Minute // a busy machine spoils figures, and ends nothing
	maxUnlike   = 1.15             // times as resident as another VM that is still called equal
)

// warmup is the round that fills caches and finds the sizes; its values are dropped.
const warmup = -1

// Options of Run.
type Options struct {
	Rounds int
	Groups []string // of figures; empty: all
	Log    io.Writer
	// Self is the command that measures the agent inside the node, AgentMain; the root of
	// the repository is added to it.
	Self []string
}

type bench struct {
	Options
	h        *harness.Harness
	node     *harness.Node
	watch    *observer.Watcher
	facts    vmm.Facts
	bare     string // initramfs
	ballast  map[int]int
	podNode  *podNode // nil: not measured yet
	podThere *podNode // where pods move
	config   error    // of configure
	result   *Result
	round    int
}

// Run measures everything. The result is there after an error too: what is missing in it is null. Nothing is left when
// it ends.
func Run(ctx context.Context, o Options) (_ *Result, err error) {
	if len(o.Groups) == 0 {
		o.Groups = Groups
	}
	b := &bench{Options: o, result: newResult(o.Rounds, o.Groups), ballast: map[int]int{}}
	begun := time.Now()
	defer func() {
		b.result.Seconds = time.Since(begun).Seconds()
		b.result.Machine.LoadAfter = load()
	}()
	if b.facts, err = b.identify(ctx); err != nil {
		return b.result, err
	}
	b.say("one node with containerd and godwitd, a registry, %d rounds after one to warm up", o.Rounds)
	b.h, err = harness.Start(ctx, harness.Options{
		Registry: harness.Direct, Godwitd: true, Images: true,
		Config: b.configure,
	})
	if err != nil {
		return b.result, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.h.Logs())
		}
		err = errors.Join(err, b.h.Close())
	}()
	if b.config != nil {
		return b.result, b.config
	}
	defer func() {
		if b.podNode != nil {
			err = errors.Join(err, b.podNode.Close())
		}
	}()
	b.node = b.h.Node(0)
	if err := b.withoutTemplates(); err != nil {
		return b.result, err
	}
	if b.bare, err = bareInitramfs(b.h.Dir); err != nil {
		return b.result, err
	}
	if err := b.importWorkload(ctx); err != nil {
		return b.result, err
	}
	conn, err := b.h.ListenPacket(net.JoinHostPort(harness.Gateway, beaconPort))
	if err != nil {
		return b.result, err
	}
	defer conn.Close()
	b.watch = observer.Watch(conn)
	for b.round = warmup; b.round < o.Rounds; b.round++ {
		begun := time.Now()
		if err := b.one(ctx); err != nil {
			return b.result, fmt.Errorf("round %d: %w", b.round+1, err)
		}
		b.say("round %d of %d took %s", b.round+1, o.Rounds, time.Since(begun).Round(time.Second))
	}
	return b.result, nil
}

// noBounce keeps a guest with RAM above 4 GiB from setting 64 MiB of it aside. So a VM of 256 MiB can be as resident as
// one of 4 GiB.
const noBounce = "swiotlb=noforce"

// configure writes a drop-in of the node's configuration and answers a line of it. A
// busy machine spoils the figures; it should not end the run as well.
func (b *bench) configure(n *harness.Node) string {
	b.config = dropIn(filepath.Dir(n.Config), "[guest]\ncmdline = '"+noBounce+"'\n")
	// Wakes are of a node that has not seen the snapshot: they read the registry.
	return "cache.packs = 0\ntimeouts = {boot = '4m'}\n"
}

// one is a round: each figure with its baseline, in turns.
func (b *bench) one(ctx context.Context) error {
	boots := []func(context.Context) error{b.ctrRun, b.bareBoot, b.ctrBoot}
	if b.round%2 == 0 { // neither always profits from what the other has warmed
		boots[0], boots[1] = boots[1], boots[0]
	}
	var steps []func(context.Context) error
	if b.wants(startGroup) || b.wants(execGroup) {
		steps = append(steps, boots...) // the bare VM runs the programs that exec compares with
	}
	if b.wants(execGroup) {
		steps = append(steps, b.exec, b.agent)
	}
	if b.wants(fleetGroup) {
		steps = append(steps, b.fleet)
	}
	for _, mib := range sizes {
		if b.wants(sleepGroup) {
			steps = append(steps, func(ctx context.Context) error { return b.sleep(ctx, mib) })
		}
	}
	for _, mib := range pauseSizes {
		if b.wants(pauseGroup) {
			steps = append(steps, func(ctx context.Context) error { return b.pause(ctx, mib) })
		}
	}
	if b.wants(snapshotGroup) {
		steps = append(steps, b.snapshot)
	}
	if b.wants(podsGroup) {
		if !b.wants(startGroup) && !b.wants(execGroup) {
			steps = append(steps, b.bareBoot)
		}
		steps = append(steps, b.pods)
	}
	defer b.derive() // also of a round that was cut short
	for _, step := range steps {
		bounded, cancel := context.WithTimeout(ctx, stepTimeout)
		err := step(bounded)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) wants(group string) bool { return slices.Contains(b.Groups, group) }

// derive computes what compares two values of this round.
func (b *bench) derive() {
	v := func(name string) float64 { return b.value(name) }
	b.note("start.extra", v("start.ctr_run")-v("start.bare"))
	b.note("start.boot_extra", v("start.boot")-v("start.bare"))
	b.note("start.cycle_ratio", v("start.cycle")/v("start.bare"))
	b.note("exec.ratio", (v("exec.ctr")-v("exec.ctr_only"))/v("exec.bare"))
	b.note(pauseFlat, v(pauseName(pauseSizes[1], "tracked"))-v(pauseName(pauseSizes[0], "tracked")))
	b.deriveSnapshot()
	b.derivePods()
	for i, mib := range sizes {
		b.note(sleepName(mib, "hibernate_ratio"), v(sleepName(mib, "hibernate_rate"))/v(sleepName(mib, "compress_rate")))
		b.note(sleepName(mib, "wake_ratio"), v(sleepName(mib, "wake_rate"))/v(sleepName(mib, "expand_rate")))
		if i > 0 && alike(v(sleepName(mib, "resident")), v(sleepName(sizes[0], "resident"))) {
			b.note(sleepName(mib, "pause_ratio"), v(sleepName(mib, "pause"))/v(sleepName(sizes[0], "pause")))
		}
	}
}

// alike reports whether two VMs are so equally resident that their pauses compare.
func alike(a, b float64) bool { return a <= b*maxUnlike && b <= a*maxUnlike }

// note keeps a value of this round, of a figure that is wanted.
func (b *bench) note(name string, v float64) {
	if f := b.result.figure(name); f != nil && b.round != warmup {
		f.set(b.round, v)
	}
}

// value is NaN for what this round has not measured.
func (b *bench) value(name string) float64 {
	if f := b.result.figure(name); f != nil && b.round != warmup && f.Raw[b.round] != nil {
		return *f.Raw[b.round]
	}
	return nan
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.Log, "bench: "+format+"\n", args...) }

// name of a VM of this round.
func (b *bench) name(kind string) string { return fmt.Sprintf("%s-%d", kind, b.round+1) }

// remove ends a VM as a user of containerd does, and its record.
func (b *bench) remove(ctx context.Context, vm string) error {
	for _, args := range [][]string{{"task", "rm", "--force", vm}, {"container", "rm", vm}} {
		if _, err := b.node.RunCtr(ctx, args...); err != nil {
			return err
		}
	}
	return b.forget(ctx, vm)
}

// forget removes the record of a VM whose container is gone, and what the registry has.
func (b *bench) forget(ctx context.Context, vm string) error {
	if _, err := b.node.RunGodwit(ctx, "rm", vm); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(b.h.Dir, "registry/docker/registry/v2"))
}
