package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// configMap is a volume as a kubelet writes it: a change is a new directory, and one rename.
type configMap struct {
	dir     string
	written int
}

// configMapOf makes the volume of a pod on a node.
func configMapOf(n *podNode, uid string) (*configMap, error) {
	c := &configMap{dir: filepath.Join(n.Dir, "kubelet/pods", uid, "volumes/kubernetes.io~configmap/settings")}
	return c, os.MkdirAll(c.dir, 0o755)
}

// write gives its key a value.
func (c *configMap) write(value string) error {
	c.written++
	name := fmt.Sprintf("..%d", c.written)
	link := filepath.Join(c.dir, "..data_tmp")
	err := errors.Join(os.Mkdir(filepath.Join(c.dir, name), 0o755),
		os.WriteFile(filepath.Join(c.dir, name, "key"), []byte(value+"\n"), 0o644), os.Symlink(name, link))
	if c.written == 1 {
		err = errors.Join(err, os.Symlink("..data/key", filepath.Join(c.dir, "key")))
	}
	return errors.Join(err, os.Rename(link, filepath.Join(c.dir, "..data")))
}

// reads is a container that says each value that it sees.
const reads = "while read v </etc/settings/key; do [ $v = $was ] || echo saw $v; was=$v; usleep 20000; done"

func (c *configMap) mount() object {
	return object{"mounts": []object{{"container_path": "/etc/settings", "host_path": c.dir, "readonly": true}}}
}

// configMap times what a kubelet writes to a volume until a container has seen it.
func (b *bench) configMap(ctx context.Context, p *ranPod) error {
	c, err := configMapOf(b.podNode, p.name)
	if err == nil {
		err = c.write("old")
	}
	if err == nil {
		_, _, err = p.container(ctx, "reader", "was=none; "+reads, c.mount())
	}
	if err != nil {
		return err
	}
	begun := time.Now()
	err = errors.Join(c.write("new"), p.line(ctx, "reader", "saw new"))
	b.note("configmap_ms", ms(time.Since(begun)))
	return err
}

// configMapWake times how long a pod that wakes goes on with the value that it went to sleep with, by its own clock:
// from its last line before the sleep to the first one with the new value. That clock stands still in between.
func (b *bench) configMapWake(ctx context.Context) error {
	vm := strings.ToLower(fmt.Sprintf("%s-%d", b.name("config"), time.Now().UnixNano()))
	from, err := b.reader(ctx, b.podNode, vm, "old")
	if err != nil {
		return err
	}
	if _, err := b.podNode.RunGodwit(ctx, "-n", "k8s.io", "hibernate", "bench."+vm); err != nil {
		return err
	}
	to, err := b.reader(ctx, b.podThere, vm, "new")
	if err != nil {
		return err
	}
	slept, err := from.saw("old")
	woken, werr := to.saw("new")
	if err = errors.Join(err, werr, from.remove(ctx), to.remove(ctx)); err != nil {
		return err
	}
	b.note("configmap_wake_ms", ms(woken[0]-slept[len(slept)-1]))
	return nil
}

// reader makes a pod on a node, and waits until it has seen a value. There it boots, or wakes.
func (b *bench) reader(ctx context.Context, n *podNode, vm, value string) (*ranPod, error) {
	c, err := configMapOf(n, vm)
	if err == nil {
		err = c.write(value)
	}
	if err != nil {
		return nil, err
	}
	p, err := n.runWith(ctx, vm, handlers[0], object{"annotations": object{"godwit.dev/vm": vm}})
	if err != nil {
		return nil, err
	}
	if _, err := p.start(ctx, "reader", readsOn, c.mount()); err != nil {
		return nil, err
	}
	return p, p.line(ctx, "reader", "saw "+value)
}

// readsOn is a container that says again and again what it sees, and when by its own clock.
const readsOn = "while read v </etc/settings/key; do read up rest </proc/uptime; echo $up saw $v; " +
	"usleep 10000; done"

// saw are the times at which the container said that it saw a value: the guest's clock since its boot.
func (p *ranPod) saw(value string) (all []time.Duration, err error) {
	data, err := os.ReadFile(filepath.Join(p.n.dir, p.name+"-reader.log"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		// CRI writes the time, the stream and whether the line is whole before each line.
		f := strings.Fields(line)
		if len(f) != 6 || f[4] != "saw" || f[5] != value {
			continue
		}
		up, err := time.ParseDuration(f[3] + "s")
		if err != nil {
			return nil, fmt.Errorf("read a line of the container: %w", err)
		}
		all = append(all, up)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the container has not said that it saw %q: %q", value, data)
	}
	return all, nil
}
