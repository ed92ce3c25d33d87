package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"godwit.dev/godwit/integration/critest"
	"godwit.dev/godwit/integration/harness"
)

// podImage is one that the node of pods has: the whole of busybox.
const podImage = "localhost/e2e-test-images/busybox:1.29-2"

// podNode is a node with containerd's CRI plugin.
type podNode struct {
	*critest.Ground
	dir string // of configurations and logs, on host and node
}

type object = map[string]any

// openPods makes the node of pods, and the one that they move to.
func (b *bench) openPods(ctx context.Context) (err error) {
	pair, err := critest.OpenPair(ctx, harness.Options{Release: harness.Newest, Log: b.say}, podImage)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, pair[0].Close())
		}
	}()
	nodes := [2]*podNode{}
	for i, g := range pair {
		nodes[i] = &podNode{Ground: g, dir: filepath.Join(b.h.Dir, "pods-"+g.Name)}
		if err := os.Mkdir(nodes[i].dir, 0o755); err != nil {
			return err
		}
		if _, err := nodes[i].call(ctx, "pull", podImage); err != nil {
			return err
		}
	}
	b.podNode, b.podThere = nodes[0], nodes[1]
	return nil
}

// call runs crictl and answers what it prints.
func (n *podNode) call(ctx context.Context, args ...string) (string, error) {
	out, err := n.Crictl(ctx, stepTimeout, args...)
	if err != nil {
		return "", fmt.Errorf("crictl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out), nil
}

// file writes a configuration and answers its path.
func (n *podNode) file(name string, content, more object) (string, error) {
	maps.Copy(content, more)
	return critest.WriteConfig(n.dir, name, content)
}

// ranPod is a pod that runs.
type ranPod struct {
	n      *podNode
	id     string
	name   string
	config string
	ready  time.Duration // from the command to its end
}

func (n *podNode) run(ctx context.Context, name, handler string) (*ranPod, error) {
	return n.runWith(ctx, name, handler, nil)
}

func (n *podNode) runWith(ctx context.Context, name, handler string, more object) (*ranPod, error) {
	config, err := n.file(name, object{
		"metadata": object{"name": name, "namespace": "bench", "uid": name, "attempt": 1}, "hostname": "pod",
		"log_directory": n.dir, "linux": object{},
	}, more)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	id, err := n.call(ctx, "runp", "--runtime", handler, config)
	return &ranPod{n: n, id: id, name: name, config: config, ready: time.Since(begun)}, err
}

// container runs a script that prints the mark. It answers the time from the start to the mark in the log.
func (p *ranPod) container(ctx context.Context, name, script string, more object) (id string, first time.Duration,
	err error) {
	if id, err = p.create(ctx, name, script, more); err != nil {
		return "", 0, err
	}
	seen := make(chan error, 1)
	begun := time.Now()
	go func() {
		err := p.line(ctx, name, mark)
		first = time.Since(begun)
		seen <- err
	}()
	if _, err := p.n.call(ctx, "start", id); err != nil {
		return "", 0, err
	}
	return id, first, <-seen
}

// start is container for one whose first line is not waited for.
func (p *ranPod) start(ctx context.Context, name, script string, more object) (id string, err error) {
	if id, err = p.create(ctx, name, script, more); err == nil {
		_, err = p.n.call(ctx, "start", id)
	}
	return id, err
}

func (p *ranPod) create(ctx context.Context, name, script string, more object) (id string, err error) {
	log := p.name + "-" + name + ".log"
	config, err := p.n.file(p.name+"-"+name, object{
		"metadata": object{"name": name, "attempt": 1}, "image": object{"image": podImage},
		"command": []string{"/bin/sh", "-c", "echo " + mark + "; " + script}, "log_path": log, "linux": object{},
	}, more)
	if err != nil {
		return "", err
	}
	return p.n.call(ctx, "create", "--no-pull", p.id, config, p.config)
}

// lookEach is how often a log is looked at.
const lookEach = time.Millisecond

// line waits for text in the log of a container.
func (p *ranPod) line(ctx context.Context, container, text string) error {
	for {
		data, err := os.ReadFile(filepath.Join(p.n.dir, p.name+"-"+container+".log"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if bytes.Contains(data, []byte(text)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%q in the log of %s: %w: %s", text, container, ctx.Err(), data)
		case <-time.After(lookEach):
		}
	}
}

func (p *ranPod) remove(ctx context.Context) error {
	_, err := p.n.call(ctx, "rmp", "--force", p.id)
	return err
}
