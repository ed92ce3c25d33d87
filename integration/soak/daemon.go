package soak

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"godwit.dev/godwit/integration/harness"
)

// daemon is a program that a service manager starts again when it has ended, as soon as no
// fault keeps it down.
type daemon struct {
	name  string
	node  *harness.Node // nil: of the wire
	proc  func() *harness.Process
	start func(context.Context) error

	mu   sync.Mutex // held while it is started
	down int        // faults that keep it down
}

func (w *world) daemonsOf() (all []*daemon) {
	for _, n := range w.Nodes() {
		all = append(all,
			&daemon{name: "godwitd", node: n, proc: func() *harness.Process { return n.Godwitd }, start: n.StartGodwitd},
			&daemon{name: "containerd", node: n, proc: func() *harness.Process {
				return n.Containerd
			}, start: func(ctx context.Context) error { return w.startContainerd(ctx, n) }})
	}
	return append(all,
		&daemon{name: "etcd", proc: func() *harness.Process { return w.Etcd }, start: w.ServeEtcd},
		&daemon{name: "registry", proc: func() *harness.Process { return w.Registry }, start: w.ServeRegistry})
}

// startContainerd starts a node's containerd. It gives up each task whose shim does not answer it
// within five seconds then, and the VM ends with its task.
func (w *world) startContainerd(ctx context.Context, n *harness.Node) error {
	excuse := func() {
		for _, g := range w.guests {
			g.set(func() {
				if slices.Contains(g.hung, n.Name) {
					g.excused, g.away = "containerd was started while its shim did not answer", ""
					g.adopted = n.Name
				}
			})
		}
	}
	excuse()
	defer excuse()
	return n.StartContainerd(ctx)
}

func (d *daemon) String() string {
	if d.node == nil {
		return d.name
	}
	return d.name + " of node " + d.node.Name
}

// pid of the daemon; one that is not there, or being started, has none.
func (d *daemon) pid() (int, bool) {
	if !d.mu.TryLock() {
		return 0, false
	}
	defer d.mu.Unlock()
	p := d.proc()
	return p.PID(), p.Exited() == nil
}

// kill ends it with SIGKILL, until up.
func (d *daemon) kill() error {
	if !d.mu.TryLock() {
		return errNobody
	}
	defer d.mu.Unlock()
	if d.proc().Exited() != nil {
		return errNobody
	}
	if err := d.proc().Kill(); err != nil {
		return err
	}
	d.down++
	return nil
}

// hold keeps it down until up, whether it runs or not.
func (d *daemon) hold() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down++
	_ = d.proc().Kill() // it may have ended
}

func (d *daemon) release(ctx context.Context) error {
	d.mu.Lock()
	d.down--
	d.mu.Unlock()
	return d.up(ctx)
}

// up starts it if it has ended, unless a fault keeps it down.
func (d *daemon) up(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down > 0 || d.proc().Exited() == nil {
		return nil
	}
	if err := d.start(ctx); err != nil {
		return fmt.Errorf("start %s again: %w", d, err)
	}
	return nil
}

// daemon answers one by its name and node.
func (w *world) daemon(name string, n *harness.Node) *daemon {
	return w.daemons[slices.IndexFunc(w.daemons, func(d *daemon) bool { return d.name == name && d.node == n })]
}

// restartEnded starts what has ended by itself, in the background.
func (w *world) restartEnded(ctx context.Context) {
	for _, d := range w.daemons {
		if _, ok := d.pid(); !ok {
			go func() {
				if err := d.up(ctx); err != nil {
					w.log("  %v", err)
				}
			}()
		}
	}
}
