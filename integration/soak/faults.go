package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// fault is what happens to a program, a link, a disk or a clock. do answers what it met, and how
// it is healed.
type fault struct {
	name string
	do   func(w *world, ctx context.Context, s Step) (what string, heal func(context.Context) error, err error)
}

// Programs that are killed and stopped.
var victims = []string{"godwitd", "containerd", "etcd", "registry", "shim", "VMM", "worker", "holder"}

func faults() (all []fault) {
	for _, v := range victims {
		all = append(all, fault{"kill " + v, func(w *world, ctx context.Context, s Step) (string, func(context.Context) error,
			error) {
			return w.killed(ctx, v, s)
		}},
			fault{"stop " + v, func(w *world, ctx context.Context, s Step) (string, func(context.Context) error, error) {
				return w.stopped(ctx, v, s)
			}})
	}
	return append(all,
		fault{"cut both ways", (*world).cutBoth}, fault{"cut one way", (*world).cutOne},
		fault{"cut from the store", (*world).cutStore},
		fault{"full disk", (*world).fullDisk}, fault{"no descriptors", (*world).noFiles},
		fault{"slow registry", (*world).slowRegistry}, fault{"broken registry", (*world).brokenRegistry},
		fault{"refusing registry", (*world).refusingRegistry},
		fault{"clock jump", (*world).clockJump}, fault{"store put back", (*world).storePutBack})
}

func faultNames() (names []string) {
	for _, f := range faults() {
		names = append(names, f.name)
	}
	return names
}

// inject does what a step wants, and heals it when its time is over.
func (w *world) inject(ctx context.Context, f fault, s Step) error {
	what, heal, err := f.do(w, ctx, s)
	if err != nil {
		return err
	}
	w.log("%s: %s", s, what)
	w.steps.add(fmt.Sprintf("%s: %s", s, what))
	w.result.change(func() { w.result.Faults++; w.result.Kinds[f.name]++ })
	if heal == nil { // nothing brings it back
		return nil
	}
	w.heals.Go(func() {
		select {
		case <-time.After(s.For):
		case <-ctx.Done():
		}
		if err := heal(context.WithoutCancel(ctx)); err != nil {
			w.log("  heal %d, %s: %v", s.N, f.name, err)
			return
		}
		w.log("  healed %d: %s", s.N, f.name)
	})
	return nil
}

func (w *world) killed(ctx context.Context, victim string, s Step) (string, func(context.Context) error, error) {
	v, err := w.find(ctx, victim, s)
	if err != nil {
		return "", nil, err
	}
	if v.daemon != nil {
		return v.what, v.daemon.release, v.daemon.kill()
	}
	if victim != "VMM" && victim != "shim" || v.g == nil {
		return v.what, nil, signal(v.pid, unix.SIGKILL)
	}
	if victim == "shim" {
		v.g.set(func() { v.g.adopted = v.n.Name })
	}
	first := v.g.excuses() == ""
	v.g.excuse(fmt.Sprintf("step %d killed its %s on node %s", s.N, victim, v.n.Name))
	err = signal(v.pid, unix.SIGKILL)
	// Where the VM was another's after that, the one who has it must have it still.
	if all, lerr := w.look(ctx); first && lerr == nil && all[v.g.name] != nil &&
		all[v.g.name].GetOwner().GetNode() != v.n.Name {
		v.g.set(func() { v.g.away = v.n.Name })
	}
	return v.what, nil, err
}

func (w *world) stopped(ctx context.Context, victim string, s Step) (string, func(context.Context) error, error) {
	v, err := w.find(ctx, victim, s)
	if err != nil {
		return "", nil, err
	}
	answers := w.noteHang(v)
	heal := func(context.Context) error {
		defer answers()
		if err := signal(v.pid, unix.SIGCONT); !errors.Is(err, errNobody) {
			return err
		}
		return nil
	}
	return v.what, heal, signal(v.pid, unix.SIGSTOP)
}

// noteHang notes that what is met does not answer, if it is a shim, until answers.
func (w *world) noteHang(v met) (answers func()) {
	if v.victim != "shim" || v.g == nil {
		return func() {}
	}
	return v.g.hang(v.n.Name)
}

func signal(pid int, sig unix.Signal) error {
	err := unix.Kill(pid, sig)
	if errors.Is(err, unix.ESRCH) {
		return errNobody
	}
	return err
}

func (w *world) cutBoth(ctx context.Context, s Step) (string, func(context.Context) error, error) {
	return w.cut(ctx, s, true)
}

func (w *world) cutOne(ctx context.Context, s Step) (string, func(context.Context) error, error) {
	return w.cut(ctx, s, false)
}

func (w *world) cut(ctx context.Context, s Step, both bool) (string, func(context.Context) error, error) {
	i := int(s.Node * float64(len(w.Nodes())))
	n, other := w.Node(i), w.Node((i+1+int(s.Other*float64(len(w.Nodes())-1)))%len(w.Nodes()))
	free, ok := w.taken.take("link " + max(n.Name, other.Name) + min(n.Name, other.Name))
	if !ok {
		return "", nil, errNobody
	}
	var heal func() error
	var err error
	what := fmt.Sprintf("what %s sends to %s is lost", n.Name, other.Name)
	if both {
		what = fmt.Sprintf("what %s and %s send to each other is lost", n.Name, other.Name)
		heal, err = n.Cut(ctx, other)
	} else {
		heal, err = n.Lose(ctx, other.Address)
	}
	return what, func(context.Context) error { defer free(); return heal() }, err
}

// cutStore takes etcd and registry away from a node: what it sends there is lost.
func (w *world) cutStore(ctx context.Context, s Step) (string, func(context.Context) error, error) {
	n, _ := at(w.Nodes(), s.Node)
	free, ok := w.taken.take("store of " + n.Name)
	if !ok {
		return "", nil, errNobody
	}
	heal, err := n.Lose(ctx, gateway)
	return "what " + n.Name + " sends to etcd and registry is lost", func(context.Context) error {
		defer free()
		return heal()
	}, err
}

// clockJump makes a node's clock wrong by up to two hours, either way, until it is put right.
func (w *world) clockJump(_ context.Context, s Step) (string, func(context.Context) error, error) {
	n, _ := at(w.Nodes(), s.Node)
	free, ok := w.taken.take("clock of " + n.Name)
	if !ok {
		return "", nil, errNobody
	}
	by := time.Duration((2*s.Other - 1) * float64(2*time.Hour)).Round(time.Second)
	heal := func(context.Context) error { defer free(); return setClock(w.clocks, n.Name, 0) }
	return fmt.Sprintf("the clock of %s jumps by %s", n.Name, by), heal, setClock(w.clocks, n.Name, by)
}

// fullDisk leaves no byte in a node's state_dir.
func (w *world) fullDisk(_ context.Context, s Step) (string, func(context.Context) error, error) {
	n, _ := at(w.Nodes(), s.Node)
	free, ok := w.taken.take("disk of " + n.Name)
	if !ok {
		return "", nil, errNobody
	}
	path := n.StateDir() + "/soak-fill"
	heal := func(context.Context) error {
		defer free()
		if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := fill(path); err != nil {
		return "", nil, errors.Join(err, heal(context.Background()))
	}
	return "state_dir of " + n.Name + " is full", heal, nil
}

// fill takes all room that a file system has.
func fill(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	var end int64
	for piece := int64(64 << 20); piece >= 4<<10; {
		switch err := unix.Fallocate(int(f.Fd()), 0, end, piece); {
		case err == nil:
			end += piece
		case errors.Is(err, unix.ENOSPC):
			piece /= 2
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("fill %s: %w", path, err)
		}
	}
	return nil
}
