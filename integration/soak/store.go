package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// put back is why a VM may be lost that a verb came by between the copy of the store and its
// return: what the copy says of it is old.
const putBack = "the store was put back to before a verb came by"

// storePutBack copies the etcd, and in the place of a healing puts the copy back, as
// docs/how-to/cluster.md says it has to be done.
func (w *world) storePutBack(ctx context.Context, _ Step) (string, func(context.Context) error, error) {
	free, ok := w.taken.take("store")
	if !ok {
		return "", nil, errNobody
	}
	copied := filepath.Join(w.Dir, "etcd-copy")
	etcd := w.daemon("etcd", nil)
	etcd.hold()
	w.old.Store(true)
	begin := time.Now()
	for _, g := range w.guests { // of a verb that is under way the copy may have any part
		g.set(func() {
			if g.busy {
				g.putBack()
			}
		})
	}
	err := errors.Join(os.RemoveAll(copied), copyDir(ctx, w.EtcdDir(), copied), etcd.release(ctx))
	if err == nil && w.draining.Load() > 0 {
		w.excuseAll()
	}
	heal := func(ctx context.Context) error {
		defer free()
		defer func() { w.result.change(func() { w.windows = append(w.windows, window{begin, time.Now()}) }) }()
		return w.restore(ctx, copied)
	}
	return "the store is copied, and the copy put back after", heal, err
}

// restore stops all controllers, puts the copy back, and has the nodes say what they have.
func (w *world) restore(ctx context.Context, copied string) error {
	etcd := w.daemon("etcd", nil)
	for _, n := range w.Nodes() {
		w.daemon("godwitd", n).hold()
	}
	etcd.hold()
	err := errors.Join(os.RemoveAll(w.EtcdDir()), copyDir(ctx, copied, w.EtcdDir()), etcd.release(ctx))
	if err != nil {
		w.log("  put the copy back: %v", err)
	}
	w.old.Store(false) // what is excused is not as its record says any more, and no verb may meet it
	first := w.Node(0)
	for _, n := range w.Nodes() {
		if err := w.daemon("godwitd", n).release(ctx); err != nil {
			w.log("  %v", err) // the service manager tries again
		}
		if n != first {
			continue
		}
		err := harness.Poll(ctx, settleBound, func(ctx context.Context) error {
			_, err := n.RunGodwit(ctx, "controller", "restore")
			return err
		})
		if err != nil {
			return fmt.Errorf("restore the records: %w", err)
		}
		w.log("  the store is back, and waits for the nodes")
	}
	return nil
}

// excuseOld is of a verb at g, or at any VM, that comes after the copy was made.
func (w *world) excuseOld(g *guest) {
	switch {
	case !w.old.Load():
	case g == nil:
		w.excuseAll()
	default:
		g.set(g.putBack)
	}
}

// excuseAll is of verbs that may meet any VM.
func (w *world) excuseAll() {
	for _, g := range w.guests {
		g.set(g.putBack)
	}
}

func copyDir(ctx context.Context, from, to string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}
