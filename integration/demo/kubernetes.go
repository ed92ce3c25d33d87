package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/integration/k8s"
	"godwit.dev/godwit/integration/observer"
)

// kubernetesDemo is a run of RunKubernetes.
type kubernetesDemo struct {
	out    io.Writer
	c      *k8s.Cluster
	watch  *observer.Watcher
	nonce  string // in the memory of redis
	counts int
	first  images.ProbeState
	last   images.ProbeState
	result KubernetesResult
}

// virtualMachine is the object of the demo. It moves live or not at all.
const virtualMachine = `{"apiVersion": "godwit.dev/v1alpha1", "kind": "VirtualMachine", "metadata": {"name": "shop"},
	"spec": {"network": "Keep", "migration": {"lane": "Live"}, "template": {"metadata": {"labels": {"app": "shop"}},
		"spec": {"containers": [
		{"name": "redis", "image": %q, "resources": {"limits": {"memory": "128Mi"}},
			"readinessProbe": {"tcpSocket": {"port": 6379}, "periodSeconds": 1}},
		{"name": "probe", "image": %q, "args": ["-beacon", %q], "resources": {"limits": {"memory": "64Mi"}}}]}}}}`

// RunKubernetes shows a VirtualMachine on a cluster of two nodes: by patches of its object it sleeps, wakes on the
// other node, and moves back while it runs. A drain moves it again. It answers and fails as Run does.
func RunKubernetes(ctx context.Context, out io.Writer) (_ KubernetesResult, err error) {
	begun := time.Now()
	d := &kubernetesDemo{out: out}
	d.say("etcd, API server, scheduler, controller manager, and two nodes with kubelet and containerd")
	d.say("kubectl apply -k packaging/kubernetes/default: two operators, and godwit on each node")
	if d.c, err = k8s.Open(ctx, k8s.Options{Nodes: 2, Handler: k8s.Godwit, Installed: true}); err != nil {
		return d.result, err
	}
	defer func() {
		if err != nil {
			d.c.Keep("demo-k8s")
			err = errors.Join(err, d.c.Logs())
		}
		err = errors.Join(err, d.c.Close())
	}()
	conn, err := d.c.ListenPacket(net.JoinHostPort(harness.Gateway, beaconPort))
	if err != nil {
		return d.result, err
	}
	defer conn.Close()
	d.watch = observer.Watch(conn)
	if err := d.story(ctx); err != nil {
		return d.result, err
	}
	seconds := time.Since(begun).Seconds()
	d.result.Seconds = &seconds
	if wrong := d.result.Check(); len(wrong) > 0 {
		return d.result, fmt.Errorf("demo: %s", strings.Join(wrong, "; "))
	}
	return d.result, nil
}

func (d *kubernetesDemo) say(format string, args ...any) {
	fmt.Fprintf(d.out, "demo: "+format+"\n", args...)
}

func (d *kubernetesDemo) story(ctx context.Context) error {
	d.say("kubectl apply: VirtualMachine shop, with redis and a probe in one VM")
	if err := d.c.Apply(ctx, fmt.Sprintf(virtualMachine, k8s.RedisImage, k8s.ProbeImage,
		net.JoinHostPort(harness.Gateway, beaconPort))); err != nil {
		return err
	}
	if err := d.wait(ctx, "condition=Ready"); err != nil {
		return err
	}
	home, err := d.c.Kubectl(ctx, "get", "gvm", "shop", "-o", "jsonpath={.status.owner.node}")
	if err != nil {
		return err
	}
	away := d.c.Nodes()[0].Name
	if away == home {
		away = d.c.Nodes()[1].Name
	}
	d.nonce = rand.Text()
	if _, err := d.c.AskRedis(ctx, "shop", "SET", "nonce", d.nonce); err != nil {
		return err
	}
	if err := d.look(ctx, home); err != nil {
		return err
	}
	d.first = d.last
	if err := d.sleep(ctx, home, away); err != nil {
		return err
	}
	d.say("kubectl patch: nodeName %s", home)
	if err := d.arrive(ctx, home, fmt.Sprintf(`{"spec": {"nodeName": %q}}`, home)); err != nil {
		return err
	}
	yes := true
	d.result.MovedLive = &yes
	if err := d.drain(ctx, home, away); err != nil {
		return err
	}
	doubles, back := d.watch.Twice()
	twice := doubles + back
	d.result.Duplicates = &twice
	d.say("kubectl delete: the VM ends, and nothing of it stays on a node")
	if _, err := d.c.Kubectl(ctx, "delete", "gvm", "shop", "--timeout="+stepTimeout().String()); err != nil {
		return err
	}
	return harness.Poll(ctx, stepTimeout(), d.silent)
}

// sleep has the VM sleep, and wake on the other node.
func (d *kubernetesDemo) sleep(ctx context.Context, home, away string) error {
	d.say("kubectl patch: operatingMode Hibernated")
	if err := d.patch(ctx, `{"spec": {"operatingMode": "Hibernated"}}`); err != nil {
		return err
	}
	if err := d.wait(ctx, "condition=Hibernated"); err != nil {
		return err
	}
	if err := harness.Poll(ctx, stepTimeout(), d.silent); err != nil {
		return err
	}
	before := d.watch.Latest()
	if err := observer.Pause(ctx, quiet); err != nil {
		return err
	}
	if now := d.watch.Latest(); now.Counter != before.Counter {
		return fmt.Errorf("the VM sleeps, and was heard: %d after %d", now.Counter, before.Counter)
	}
	d.say("no node has a VMM. kubectl patch: operatingMode Running, nodeName %s instead of %s", away, home)
	wish := fmt.Sprintf(`{"spec": {"operatingMode": "Running", "nodeName": %q}}`, away)
	if err := d.arrive(ctx, away, wish); err != nil {
		return err
	}
	yes := true
	d.result.HibernatedWoken = &yes
	return nil
}

// silent tells whether no node has a VMM.
func (d *kubernetesDemo) silent(context.Context) error {
	for _, n := range d.c.Nodes() {
		if pids, err := n.VMMs(); err != nil || len(pids) > 0 {
			return fmt.Errorf("node %s has the VMMs %v: %w", n.Name, pids, err)
		}
	}
	return nil
}

func (d *kubernetesDemo) patch(ctx context.Context, text string) error {
	_, err := d.c.Kubectl(ctx, "patch", "gvm", "shop", "--type=merge", "-p", text)
	return err
}

func (d *kubernetesDemo) wait(ctx context.Context, what string) error {
	_, err := d.c.Kubectl(ctx, "wait", "gvm/shop", "--for="+what, "--timeout="+stepTimeout().String())
	return err
}

// arrive changes the object, and waits until the VM runs on that node.
func (d *kubernetesDemo) arrive(ctx context.Context, node, text string) error {
	if err := d.patch(ctx, text); err != nil {
		return err
	}
	for _, what := range []string{"jsonpath={.status.owner.node}=" + node, "jsonpath={.status.phase}=Running",
		"condition=Ready"} {
		if err := d.wait(ctx, what); err != nil {
			return err
		}
	}
	return d.look(ctx, node)
}

// look asks redis and the probe from the wire, and compares them with what they said before.
func (d *kubernetesDemo) look(ctx context.Context, node string) error {
	nonce, err := d.c.AskRedis(ctx, "shop", "GET", "nonce")
	if err != nil {
		return err
	}
	count, err := d.c.AskRedis(ctx, "shop", "INCR", "count")
	if err != nil {
		return err
	}
	d.counts++
	address, err := d.c.Kubectl(ctx, "get", "gvm", "shop", "-o", "jsonpath={.status.addresses[0]}")
	if err != nil {
		return err
	}
	was := d.last
	if err := harness.Poll(ctx, stepTimeout(), func(ctx context.Context) (err error) {
		d.last, err = observer.Ask(ctx, d.c.Dial, address)
		return err
	}); err != nil {
		return err
	}
	d.say("node %s has the VM, at %s: nonce %.8s, count %s, counter %d", node, address, nonce, count, d.last.Counter)
	if was.Nonce == "" {
		return nil
	}
	same := nonce == d.nonce && d.last.Nonce == was.Nonce && d.last.BootID == was.BootID && d.last.PID == was.PID
	goes := count == fmt.Sprint(d.counts) && d.last.Counter > was.Counter
	disk := d.last.FileOK && d.last.FileLines > was.FileLines
	for old, now := range map[**bool]bool{&d.result.NonceSame: same, &d.result.CounterOK: goes, &d.result.DiskOK: disk} {
		now := now && (*old == nil || **old)
		*old = &now
	}
	return nil
}
