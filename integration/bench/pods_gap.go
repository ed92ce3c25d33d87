package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// gapMemory is the RAM of a pod whose gap is measured.
const gapMemory = "2GiB"

// ticks is a container that writes a line every few milliseconds. containerd writes the time to each.
const ticks = "while :; do echo tick; usleep 2000; done"

// gapLines are so many lines that the pod has begun to flow where it came.
const gapLines = 20

// gaps times what a pod of one container, and one of podContainers, stand still in a live move, by turns.
func (b *bench) gaps(ctx context.Context) error {
	all := []struct {
		figure     string
		containers int
	}{{"pods.gap_one", 1}, {"pods.gap", podContainers}}
	for i := range all {
		one := all[(i+b.round+2)%2]
		gap, err := b.podGap(ctx, one.containers)
		if err != nil {
			return fmt.Errorf("move a pod of %d containers: %w", one.containers, err)
		}
		b.note(one.figure, ms(gap))
	}
	return nil
}

// podGap moves a pod, and answers the time between its last line on the one node and its first on the other.
func (b *bench) podGap(ctx context.Context, containers int) (time.Duration, error) {
	vm := strings.ToLower(fmt.Sprintf("%s-%d", b.name("gap"), time.Now().UnixNano()))
	from, err := b.moving(ctx, b.podNode, vm, containers)
	if err != nil {
		return 0, err
	}
	over := make(chan error, 1)
	go func() {
		_, err := b.podNode.RunGodwit(ctx, "-n", "k8s.io", "migrate", "bench."+vm, "--to", b.podThere.Name, "--mode", "live")
		over <- err
	}()
	err = harness.Poll(ctx, stepTimeout, func(ctx context.Context) error {
		_, err := b.podNode.WaitingMove(ctx)
		return err
	})
	if err != nil {
		return 0, err
	}
	to, err := b.moving(ctx, b.podThere, vm, containers)
	if err == nil {
		err = <-over
	}
	if err != nil {
		return 0, err
	}
	var there []time.Time
	err = harness.Poll(ctx, stepTimeout, func(context.Context) error {
		if there, err = to.times("c0"); err == nil && len(there) < gapLines {
			err = fmt.Errorf("the pod has written %d lines on node %s", len(there), b.podThere.Name)
		}
		return err
	})
	here, herr := from.times("c0")
	if err = errors.Join(err, herr, from.remove(ctx), to.remove(ctx)); err != nil {
		return 0, err
	}
	return there[0].Sub(here[len(here)-1]), nil
}

// moving makes the pod on a node: there it boots, or waits for its VM.
func (b *bench) moving(ctx context.Context, n *podNode, vm string, containers int) (*ranPod, error) {
	p, err := n.runWith(ctx, vm, handlers[0], object{"annotations": object{"godwit.dev/vm": vm,
		"godwit.dev/memory": gapMemory}})
	if err != nil {
		return nil, err
	}
	for i := range containers {
		script := stays
		if i == 0 {
			script = ticks
		}
		if _, err := p.start(ctx, fmt.Sprintf("c%d", i), script, nil); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// times are when containerd read each line of a container's log.
func (p *ranPod) times(container string) (all []time.Time, err error) {
	data, err := os.ReadFile(filepath.Join(p.n.dir, p.name+"-"+container+".log"))
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(data) {
		at, text, _ := strings.Cut(string(line), " ")
		if !strings.HasSuffix(text, "tick\n") {
			continue
		}
		t, err := time.Parse(time.RFC3339Nano, at)
		if err != nil {
			return nil, fmt.Errorf("read a line of CRI's log: %w", err)
		}
		all = append(all, t)
	}
	return all, nil
}
