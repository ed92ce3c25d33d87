package soak

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/integration/critest"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

const (
	criNamespace  = "k8s.io" // of containerd
	podNamespace  = "team"   // of Kubernetes
	podMemory     = "128MiB"
	firstPodPort  = 9300
	mainContainer = "one" // it is the guest of the pod
	sideContainer = "two" // it may end before the pod
)

// criConfig is containerd's part for CRI. The sandbox's image is not run.
const criConfig = `[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '` + images.Probe + `'
` + harness.Handlers

// callBound is how long a call of crictl may take, and podBound all calls that make a pod.
var (
	callBound = harness.Slow(40 * time.Second)
	podBound  = harness.Slow(100 * time.Second)
)

// pod is what a guest has that CRI makes: a second container, which is heard on a port of its own.
type pod struct {
	name   string // CRI's; the guest has the name of the VM
	side   *guest
	loose  bool // the side container may have ended or not; guarded by the guest's mu
	serial int  // of names: CRI gives none away twice; guarded by the guest's mu
}

func (w *world) addPod(i int) error {
	name := fmt.Sprintf("pod%02d", i)
	g := newGuest(podNamespace+"."+name, firstPodPort+2*i)
	g.pod = &pod{name: name, side: newGuest(g.name+"/"+sideContainer, firstPodPort+2*i+1)}
	w.guests = append(w.guests, g)
	return errors.Join(w.hear(g), w.hear(g.pod.side))
}

// all are the guest and its second container.
func (g *guest) all() []*guest {
	if g.pod == nil {
		return []*guest{g}
	}
	return []*guest{g, g.pod.side}
}

func (g *guest) journal(n *harness.Node) harness.Journal {
	if g.pod == nil {
		return n.Journal(g.name)
	}
	return n.JournalIn(criNamespace, g.name)
}

func crictl(ctx context.Context, n *harness.Node, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	out, err := n.Crictl(ctx, callBound, args...)
	return strings.TrimSpace(out), err
}

// sandboxes that CRI has of a pod on a node, with a state or, with none, in all.
func (g *guest) sandboxes(ctx context.Context, n *harness.Node, state string) ([]string, error) {
	args := []string{"pods", "-q", "--name", "^" + g.pod.name + "$"}
	if state != "" {
		args = append(args, "--state", state)
	}
	out, err := crictl(ctx, n, args...)
	return strings.Fields(out), err
}

// drop removes what CRI has of the pod on a node.
func (g *guest) drop(ctx context.Context, n *harness.Node) error {
	all, err := g.sandboxes(ctx, n, "")
	for _, id := range all {
		if _, e := crictl(ctx, n, "stopp", id); e != nil {
			return e
		}
		_, e := crictl(ctx, n, "rmp", id)
		err = errors.Join(err, e)
	}
	return err
}

type object = map[string]any

// making is how a pod is made on a node, as a kubelet makes it.
type making struct {
	w       *world
	g       *guest
	n       *harness.Node
	fresh   bool                        // there is no VM of it; else another one must not begin
	started bool                        // a container may have run
	names   []string                    // of the containers to be made
	between func(context.Context) error // is called once, after the sandbox is made
}

func (w *world) making(g *guest, n *harness.Node) *making {
	return &making{w: w, g: g, n: n, names: []string{mainContainer, sideContainer}}
}

// again makes the pod, and goes on with what is there when a call has failed, until the bound.
func (m *making) again(ctx context.Context) error {
	return harness.Poll(ctx, podBound, func(ctx context.Context) error {
		err := m.make(ctx)
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		return err
	})
}

// make makes what is missing of the pod: the sandbox, then each container.
func (m *making) make(ctx context.Context) error {
	ready, err := m.g.sandboxes(ctx, m.n, "ready")
	if err != nil {
		return err
	}
	dir := filepath.Join(m.n.Dir, "pods")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	config := filepath.Join(dir, m.g.pod.name+".json")
	if len(ready) == 0 {
		id, err := m.sandbox(ctx, dir)
		if err != nil {
			return err
		}
		ready = []string{id}
	}
	if m.between != nil {
		between := m.between
		m.between = nil
		if err := between(ctx); err != nil {
			return err
		}
	}
	for _, name := range m.names {
		if err := m.container(ctx, dir, ready[0], config, name); err != nil {
			return err
		}
	}
	return nil
}

func (m *making) next() (serial int) {
	m.g.set(func() { m.g.pod.serial++; serial = m.g.pod.serial })
	return serial
}

// sandbox makes that of the pod; what CRI has of earlier ones goes first.
func (m *making) sandbox(ctx context.Context, dir string) (id string, err error) {
	if err := m.may(ctx); err != nil {
		return "", err
	}
	if err := errors.Join(m.g.drop(ctx, m.n), m.w.separateAddresses(m.n)); err != nil {
		return "", err
	}
	serial := m.next()
	config, err := critest.WriteConfig(dir, m.g.pod.name, object{
		"metadata": object{"name": m.g.pod.name, "namespace": podNamespace, "uid": fmt.Sprintf("uid-%d", serial),
			"attempt": serial},
		"linux":       object{},
		"annotations": object{"godwit.dev/vm": m.g.pod.name, "godwit.dev/memory": podMemory},
	})
	if err != nil {
		return "", err
	}
	return crictl(ctx, m.n, "runp", "--runtime", "godwit", config)
}

// may refuses a sandbox that would be a VM without an order.
func (m *making) may(ctx context.Context) error {
	if m.fresh && m.started {
		return fmt.Errorf("pod %s has run, and its sandbox is gone", m.g.name)
	}
	if m.fresh {
		return nil
	}
	all, err := m.w.look(ctx)
	if err != nil {
		return err
	}
	rec := all[m.g.name]
	if rec.GetOwner().GetDigest() == "" && rec.GetOperation().GetDestination() != m.n.Name {
		return fmt.Errorf("pod %s neither sleeps nor goes to node %s: %s", m.g.name, m.n.Name, said(rec))
	}
	return nil
}

// container makes and starts one that does not run yet.
func (m *making) container(ctx context.Context, dir, sandbox, config, name string) error {
	id, err := crictl(ctx, m.n, "ps", "-a", "-q", "--latest", "--pod", sandbox, "--name", "^"+name+"$")
	if err != nil {
		return err
	}
	state := ""
	if id != "" {
		state, err = crictl(ctx, m.n, "inspect", "-o", "go-template", "--template", "{{.status.state}}", id)
		if err != nil {
			return err
		}
	}
	switch state {
	case "CONTAINER_RUNNING":
		return nil
	case "CONTAINER_EXITED":
		if name == sideContainer {
			return nil
		}
		return errors.Join(fmt.Errorf("container %s of pod %s has ended on node %s", name, m.g.name, m.n.Name),
			m.g.drop(ctx, m.n))
	case "CONTAINER_CREATED":
		_, err = crictl(ctx, m.n, "start", id)
		return err
	case "CONTAINER_UNKNOWN":
		if _, err = crictl(ctx, m.n, "stop", id); err != nil {
			return err
		}
	}
	file, err := critest.WriteConfig(dir, m.g.pod.name+"-"+name, m.config(name))
	if err != nil {
		return err
	}
	m.started = true
	if id, err = crictl(ctx, m.n, "create", "--no-pull", sandbox, file, config); err == nil {
		_, err = crictl(ctx, m.n, "start", id)
	}
	return err
}

// config of a container: a probe, which serves and sends on ports of its own.
func (m *making) config(name string) object {
	port, listen := m.g.port, ":8080"
	if name == sideContainer {
		port, listen = m.g.pod.side.port, ":8081"
	}
	return object{
		"metadata": object{"name": name, "attempt": m.next()}, "image": object{"image": images.Probe}, "linux": object{},
		"command": []string{"/bin/probe", "-listen", listen, "-beacon", net.JoinHostPort(harness.Gateway, port),
			"-interval", interval},
	}
}

// attend does for a pod what a controller of pods does. A pod that is on its way is made where it goes. What CRI has of
// it where it neither is nor goes is removed.
func (w *world) attend(ctx context.Context, g *guest, rec *nodev1.Record) {
	owner, op := rec.GetOwner().GetNode(), rec.GetOperation()
	if op != nil {
		if to := w.node(op.GetDestination()); to != nil && to.Name != owner {
			err := w.making(g, to).make(ctx)
			w.log("  pod %s is made on node %s for operation %s: %v", g.name, to.Name, op.GetId(), err)
		}
		return
	}
	for _, n := range w.Nodes() {
		if n.Name == owner {
			continue
		}
		if err := g.drop(ctx, n); err != nil {
			w.log("  remove pod %s from node %s: %v", g.name, n.Name, err)
		}
	}
}

// followPods makes the pods that a drain sends away where they go, until ctx ends.
func (w *world) followPods(ctx context.Context) {
	for ctx.Err() == nil {
		if all, err := w.look(ctx); err == nil {
			for _, g := range w.guests {
				if rec := all[g.name]; g.pod != nil && rec.GetOperation().GetKind() == nodev1.Kind_KIND_MIGRATE && g.claim() {
					w.attend(ctx, g, rec)
					g.set(func() { g.busy = false })
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// podStands checks a pod that runs: CRI has it where it is, and its second container is heard if it has not ended.
func (w *world) podStands(ctx context.Context, g *guest, owner *harness.Node) error {
	side := g.pod.side
	if strangers := side.known(); len(strangers) > 0 {
		return fmt.Errorf("its second container runs as others too: %s", strings.Join(strangers, ", "))
	}
	adopted, loose := false, false
	g.set(func() { adopted, loose = g.adopted == owner.Name, g.pod.loose })
	if side.vm() != "" && !loose && time.Since(side.last().at) > quiet {
		return fmt.Errorf("its second container is silent since %s", side.last().at.Format(time.TimeOnly))
	}
	if adopted { // containerd has no task of it
		return nil
	}
	ready, err := g.sandboxes(ctx, owner, "ready")
	if err != nil {
		return err
	}
	if len(ready) != 1 {
		return fmt.Errorf("CRI of node %s has %d sandboxes of it that are ready", owner.Name, len(ready))
	}
	running, err := runningIn(ctx, owner, ready[0], mainContainer)
	if err == nil && running == "" {
		err = fmt.Errorf("CRI of node %s does not have its first container as one that runs", owner.Name)
	}
	return err
}

// removePod removes a pod from all nodes, and the VM that sleeps.
func (w *world) removePod(ctx context.Context, g *guest) error {
	for _, n := range w.Nodes() {
		if err := g.drop(ctx, n); err != nil {
			return err
		}
	}
	err := w.removeRecord(ctx, "-n", criNamespace, "rm", "--force", g.name)
	if err == nil {
		g.retire()
		g.pod.side.retire()
		g.set(func() { g.pod.loose = false })
	}
	return err
}
