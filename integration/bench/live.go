package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/observer"
)

// Where the parts of a live measurement run, and how often their guests tick.
const (
	livePort = 9999
	liveTick = time.Millisecond
	liveVM   = "live"
)

// liveBench is a run of RunLive.
type liveBench struct {
	bench
	ports *observer.Ports // 0: node a's, 1: node b's
	there *harness.Node
	step  func(ctx context.Context, kind string, sizes []shape) error // of the ring: a round
}

// RunLive measures moves between two nodes, and QEMU's own live migration of the same guest. Its result is as Run's.
func RunLive(ctx context.Context, o Options) (_ *Result, err error) {
	if len(o.Groups) == 0 {
		o.Groups = LiveGroups
	}
	b := &liveBench{bench: bench{Options: o, result: newResultOf(o.Rounds, liveFigures(o.Groups)), ballast: map[int]int{}}}
	begun := time.Now()
	defer func() {
		b.result.Seconds = time.Since(begun).Seconds()
		b.result.Machine.LoadAfter = load()
	}()
	if b.facts, err = b.identify(ctx); err != nil {
		return b.result, err
	}
	b.say("two nodes with containerd and godwitd, a registry, %d rounds", o.Rounds)
	b.h, err = harness.Start(ctx, harness.Options{Nodes: 2, Registry: harness.Direct, Godwitd: true, Images: true,
		Config: b.configure})
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
	b.node, b.there = b.h.Node(0), b.h.Node(1)
	sniffers, err := b.h.SniffAll(livePort)
	if err != nil {
		return b.result, err
	}
	defer harness.CloseAll(sniffers)
	b.ports = observer.Hear(sniffers...)
	if err := b.twoNodes(ctx); err != nil {
		return b.result, err
	}
	for b.round = 0; b.round < o.Rounds; b.round++ {
		begun := time.Now()
		if err := b.liveRound(ctx); err != nil {
			return b.result, fmt.Errorf("round %d: %w", b.round+1, err)
		}
		b.say("round %d of %d took %s", b.round+1, o.Rounds, time.Since(begun).Round(time.Second))
	}
	return b.result, nil
}

// configure writes a drop-in of each node's configuration.
func (b *liveBench) configure(n *harness.Node) string {
	b.config = errors.Join(b.config, dropIn(filepath.Dir(n.Config), liveConfig()))
	if harness.Nested() { // where boots have more time already
		return ""
	}
	return "timeouts = {boot = '4m'}\n"
}

// liveConfig makes VMs boot, with all their RAM in use by themselves.
func liveConfig() string {
	line := noBounce
	if harness.Nested() {
		line += " " + harness.NestedCmdline
	}
	return "[guest]\ncmdline = '" + line + "'\n[template]\nmode = 'off'\n"
}

// twoNodes waits until the controller knows both.
func (b *liveBench) twoNodes(ctx context.Context) error {
	return harness.Poll(ctx, stepTimeout, func(ctx context.Context) error {
		nodes, err := b.moves(ctx, "nodes")
		if err == nil && len(nodes.Nodes) < 2 {
			err = fmt.Errorf("the controller knows %d nodes", len(nodes.Nodes))
		}
		return err
	})
}

// liveRound is a round: godwit and its rivals by turns, so that neither always profits.
func (b *liveBench) liveRound(ctx context.Context) error {
	var steps []func(context.Context) error
	if b.wants(gapGroup) {
		for _, size := range gapSizes {
			turns := []func(context.Context) error{
				func(ctx context.Context) error { return b.gap(ctx, size) },
				func(ctx context.Context) error { return b.rival(ctx, size, 300) },
				func(ctx context.Context) error { return b.rival(ctx, size, 10) },
			}
			for i := range turns {
				steps = append(steps, turns[(i+b.round)%len(turns)])
			}
		}
	}
	if b.wants(stopGroup) {
		steps = append(steps, b.dirty, b.flat, b.content)
	}
	if b.wants(verifyGroup) {
		steps = append(steps, func(ctx context.Context) error {
			return b.verify(ctx, false)
		}, func(ctx context.Context) error { return b.verify(ctx, true) })
	}
	if b.wants(coldGroup) {
		steps = append(steps, b.cold)
	}
	defer b.deriveLive()
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

// deriveLive compares values of this round.
func (b *liveBench) deriveLive() {
	for _, s := range gapSizes {
		for _, limit := range gapLimits {
			b.note(fmt.Sprintf("gap_vs_n%d_%s", limit, s.name), b.value("gap_ms_"+s.name)/b.value(rivalName(s, limit)))
		}
	}
	b.note("flat_extra_ms", b.value("stop_cont_ms_2g_1300")-b.value("stop_cont_ms_2g_230"))
}
