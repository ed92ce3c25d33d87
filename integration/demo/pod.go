package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"godwit.dev/godwit/integration/critest"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/integration/observer"
)

// podDemo is a run of RunPod.
type podDemo struct {
	demo
	nodes  [2]*critest.Ground
	nonce  string
	seen   []int // what the sidecar has told, on all nodes
	result PodResult
}

// RunPod shows a pod of three containers that sleeps on one node, wakes on another, and moves back while it runs. All
// of it is done with crictl, but for the orders to sleep and to move. It answers and fails as Run does.
func RunPod(ctx context.Context, out io.Writer) (_ PodResult, err error) {
	d := &podDemo{demo: demo{out: out}}
	d.say("two nodes, each with containerd's CRI and godwitd, one wire, one OCI registry")
	if d.nodes, err = critest.OpenPair(ctx, harness.Options{Release: harness.Newest}); err != nil {
		return PodResult{}, err
	}
	defer func() { err = errors.Join(err, d.nodes[0].Close()) }()
	if err := d.fetch(ctx); err != nil {
		return d.result, err
	}
	if err := d.story(ctx); err != nil {
		return d.result, err
	}
	if wrong := append(d.result.Check(), d.failed...); len(wrong) > 0 {
		return d.result, fmt.Errorf("demo: %s", strings.Join(wrong, "; "))
	}
	return d.result, nil
}

// fetch gives both nodes the image of redis.
func (d *podDemo) fetch(ctx context.Context) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	probe, err := d.nodes[0].Build(ctx, "probe")
	if err != nil {
		return err
	}
	all, err := images.Real(ctx, filepath.Join(root, "bin", "debs"), probe)
	if err != nil {
		return err
	}
	for _, n := range d.nodes {
		file := filepath.Join(n.Dir, "redis.tar")
		if err := images.Write(file, all[1]); err != nil {
			return err
		}
		if _, err := n.RunCtr(ctx, "-n", "k8s.io", "images", "import", "--local", file); err != nil {
			return err
		}
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return nil
}

func (d *podDemo) story(ctx context.Context) error {
	a, b := d.nodes[0], d.nodes[1]
	yes := true
	first, err := d.run(ctx, a, "boot")
	if err != nil {
		return err
	}
	if d.nonce, err = d.redis(ctx, first, "GET nonce"); err != nil {
		return err
	}
	d.say("node a: three containers run in one VM, nonce %s", d.nonce)
	if err := observer.Pause(ctx, settle); err != nil {
		return err
	}
	d.say("node a: godwit -n k8s.io hibernate team.shop")
	if _, err := a.RunGodwit(ctx, "-n", "k8s.io", "hibernate", "team.shop"); err != nil {
		return err
	}
	if err := d.leave(ctx, first); err != nil {
		return err
	}
	d.result.Slept = &yes
	second, err := d.run(ctx, b, "wake")
	if err != nil {
		return err
	}
	if err := d.compare(ctx, second); err != nil {
		return err
	}
	third, err := d.move(ctx, second, a)
	if err != nil {
		return err
	}
	d.result.MovedLive = &yes
	if err := d.compare(ctx, third); err != nil {
		return err
	}
	if err := d.judge(ctx, third); err != nil {
		return err
	}
	return d.leave(ctx, third)
}

// move orders a live move, makes the pod on the other node while the move waits for it, and sees it come.
func (d *podDemo) move(ctx context.Context, from *shop, to *critest.Ground) (*shop, error) {
	if err := known(ctx, from.n.Node, to.Node); err != nil {
		return nil, err
	}
	d.say("node %s: godwit -n k8s.io migrate team.shop --to %s --mode live", from.n.Name, to.Name)
	over := make(chan error, 1)
	go func() {
		_, err := from.n.RunGodwit(ctx, "-n", "k8s.io", "migrate", "team.shop", "--to", to.Name, "--mode", "live")
		over <- err
	}()
	err := harness.Poll(ctx, stepTimeout(), func(ctx context.Context) error {
		_, err := from.n.WaitingMove(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	d.say("node %s: the move waits, and the pod runs on", from.n.Name)
	there, err := d.run(ctx, to, "move")
	if err != nil {
		return nil, err
	}
	if err := <-over; err != nil {
		return nil, err
	}
	return there, d.leave(ctx, from)
}

// leave wants a pod to be gone from its node, and removes what CRI has of it. What its sidecar told there is kept.
func (d *podDemo) leave(ctx context.Context, s *shop) error {
	told, err := s.told()
	if err != nil {
		return err
	}
	d.seen = append(d.seen, told...)
	if _, err := d.cri(ctx, s.n, "stopp", s.pod); err != nil {
		return err
	}
	return harness.Poll(ctx, stepTimeout(), func(ctx context.Context) error { // its end is told to CRI by an event
		_, err := d.cri(ctx, s.n, "rmp", s.pod)
		return err
	})
}

// compare looks at a pod that has come: the same redis, which counts on.
func (d *podDemo) compare(ctx context.Context, s *shop) error {
	nonce, err := d.redis(ctx, s, "GET nonce")
	if err != nil {
		return err
	}
	same := nonce == d.nonce && (d.result.NonceSame == nil || *d.result.NonceSame)
	d.result.NonceSame = &same
	begun := time.Now()
	err = harness.Poll(ctx, stepTimeout(), func(context.Context) error { // the sidecar goes on
		if told, err := s.told(); err != nil || len(told) < 20 {
			return fmt.Errorf("the sidecar has told %d counts on node %s: %w", len(told), s.n.Name, err)
		}
		return nil
	})
	goes := err == nil && (d.result.CounterOK == nil || *d.result.CounterOK)
	d.result.CounterOK = &goes
	d.say("node %s: the same redis (%t), and its sidecar counts on, %.0f ms later", s.n.Name, same, ms(time.Since(begun)))
	return err
}
