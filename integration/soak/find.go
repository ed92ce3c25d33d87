package soak

import (
	"context"
	"fmt"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// gateway is where etcd and registry are reached.
const gateway = harness.Gateway

// met is a process that a fault meets.
type met struct {
	what   string
	pid    int
	daemon *daemon // nil: of a VM
	g      *guest  // nil: whose it is is not known
	n      *harness.Node
	victim string // of which kind it is
}

// workerWait is how long a worker is waited for: it lives as long as a snapshot is written or read.
const workerWait = 10 * time.Second

// find answers a program of a kind, chosen by the step.
func (w *world) find(ctx context.Context, victim string, s Step) (met, error) {
	switch victim {
	case "shim", "VMM", "holder":
		return w.ofVM(victim, s)
	case "worker":
		return w.worker(ctx, s)
	}
	var all []*daemon
	for _, d := range w.daemons {
		if d.name == victim {
			all = append(all, d)
		}
	}
	d, _ := at(all, s.Node)
	pid, ok := d.pid()
	if !ok {
		return met{}, errNobody
	}
	return met{what: d.String(), pid: pid, daemon: d}, nil
}

// ofVM finds a process of a VM by a node's journal.
func (w *world) ofVM(victim string, s Step) (met, error) {
	type candidate struct {
		n   *harness.Node
		g   *guest
		pid int
	}
	var all []candidate
	for _, g := range w.guests {
		for _, n := range w.Nodes() {
			j := g.journal(n)
			pid := map[string]int{"shim": j.Shim.PID, "VMM": j.Process.PID, "holder": j.SandboxProcess.PID}[victim]
			if pid != 0 {
				all = append(all, candidate{n, g, pid})
			}
		}
	}
	c, ok := at(all, s.VM)
	if !ok {
		return met{}, errNobody
	}
	pid, err := c.n.HostPID(c.pid)
	if err != nil {
		return met{}, fmt.Errorf("%w: %w", errNobody, err)
	}
	return met{what: fmt.Sprintf("%s of %s on node %s", victim, c.g.name, c.n.Name), pid: pid, g: c.g, n: c.n,
		victim: victim}, nil
}

// worker finds one. Where there is none now a checkpoint is ordered, which has one.
func (w *world) worker(ctx context.Context, s Step) (m met, err error) {
	ordered := false
	err = harness.Poll(ctx, workerWait, func(context.Context) error {
		type candidate struct {
			n   *harness.Node
			pid int
		}
		var all []candidate
		for _, n := range w.Nodes() {
			pids, err := n.Workers()
			if err != nil {
				return err
			}
			for _, pid := range pids {
				all = append(all, candidate{n, pid})
			}
		}
		c, ok := at(all, s.VM)
		if !ok && !ordered {
			ordered = true
			w.checkpoints(ctx, s)
		}
		if !ok {
			return errNobody
		}
		m = met{what: fmt.Sprintf("worker %d on node %s", c.pid, c.n.Name), pid: c.pid}
		return nil
	})
	return m, err
}

// checkpoints orders a checkpoint for a step that needs a worker.
func (w *world) checkpoints(ctx context.Context, s Step) {
	for _, v := range verbs() {
		if v.name != "checkpoint" {
			continue
		}
		if err := w.order(ctx, v, Step{N: s.N, Name: v.name, VM: s.VM, Node: s.Node, Other: s.Other}); err != nil {
			w.log("%s: no worker: %v", s, err)
		}
	}
}

// filesLeft is less than any process has: it can open none.
const filesLeft = 3

// noFiles lets a godwitd, a containerd or a shim open nothing.
func (w *world) noFiles(ctx context.Context, s Step) (string, func(context.Context) error, error) {
	victim, _ := at([]string{"godwitd", "shim", "containerd", "godwitd"}, s.Other)
	v, err := w.find(ctx, victim, s)
	if err != nil {
		return "", nil, err
	}
	free, ok := w.taken.take(fmt.Sprintf("files of %d", v.pid))
	if !ok {
		return "", nil, errNobody
	}
	restore, err := harness.LimitFiles(v.pid, filesLeft)
	if err != nil {
		free()
		return "", nil, err
	}
	answers := w.noteHang(v)
	return v.what + " can open no file", func(context.Context) error {
		defer free()
		defer answers()
		return restore()
	}, nil
}
