package soak

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// What a daemon may hold more than before: its caches, and connections that are closed a little
// later.
const (
	moreFiles      = 8
	moreGoroutines = 16
	moreKiB        = 48 << 10
	moreKiBWire    = 192 << 10
	moreFilesWire  = 64 // connections that clients keep for the next request
)

// measure takes down what nodes and daemons hold before the first VM.
func (w *world) measure(ctx context.Context) (err error) {
	for _, n := range w.Nodes() {
		if w.empty[n], err = n.Inventory(ctx); err != nil {
			return err
		}
	}
	if w.stored, err = w.manifests(); err != nil {
		return err
	}
	w.result.Before, err = w.usage(ctx)
	return err
}

// endBound is more than the rounds in which nodes free what they still hold.
var endBound = harness.Slow(2 * time.Minute)

// end removes all VMs, and looks what is left of them.
func (w *world) end(ctx context.Context) error {
	for _, g := range w.guests {
		if err := harness.Poll(ctx, settleBound, func(ctx context.Context) error { return w.remove(ctx, g) }); err != nil {
			w.violation("VM %s cannot be removed at the end: %v", g.name, err)
		}
	}
	var left []string
	lerr := harness.Poll(ctx, endBound, func(ctx context.Context) error {
		now, err := w.left(ctx)
		if err != nil {
			return err
		}
		if left = now; len(left) > 0 {
			err = fmt.Errorf("%d are left", len(left))
		}
		return err
	})
	if lerr != nil && len(left) == 0 {
		return lerr
	}
	var grown []string
	err := harness.Poll(ctx, endBound, func(ctx context.Context) error {
		now, err := w.grown(ctx)
		if err != nil {
			return err
		}
		if grown = now; len(grown) > 0 {
			err = fmt.Errorf("%d have grown", len(grown))
		}
		return err
	})
	if err != nil && len(grown) == 0 {
		return err
	}
	w.result.change(func() {
		w.result.Left, w.result.LeftBehind = append(w.result.Left, left...), len(left)
		w.result.Grown, w.result.Growth = append(w.result.Grown, grown...), len(grown)
	})
	if len(left)+len(grown) > 0 {
		w.KeepIn(w.opts.Keep)
		w.result.change(func() { w.result.KeptIn = w.opts.Keep })
	}
	w.blames()
	return nil
}

// left lists what the nodes hold that they did not hold at the begin.
func (w *world) left(ctx context.Context) (all []string, err error) {
	for _, n := range w.Nodes() {
		now, err := n.Inventory(ctx)
		if err != nil {
			return nil, err
		}
		for _, item := range now.Since(w.empty[n]) {
			if !strings.HasPrefix(item, "cgroup ") || w.named(filepath.Base(item)) {
				all = append(all, n.Name+": "+item)
			}
		}
		vms, err := journals(filepath.Join(n.StateDir(), "vms"))
		if err != nil {
			return nil, err
		}
		for _, vm := range vms {
			all = append(all, n.Name+": journal of "+vm)
		}
	}
	records, err := w.look(ctx)
	for name := range records {
		all = append(all, "record of "+name)
	}
	kept, kerr := w.kept(ctx)
	all = append(all, kept...)
	slices.Sort(all)
	return all, errors.Join(err, kerr)
}

func (w *world) named(name string) bool {
	return slices.ContainsFunc(w.guests, func(g *guest) bool { return strings.HasSuffix(name, g.name) })
}

// grown says which daemons hold more than before. Those that were started again are measured
// against the first ones.
func (w *world) grown(ctx context.Context) (all []string, err error) {
	now, err := w.usage(ctx)
	if err != nil {
		return nil, err
	}
	w.result.change(func() { w.result.After = now })
	for _, node := range slices.Sorted(maps.Keys(now)) {
		kib, files := moreKiB, moreFiles
		if node == wire { // an etcd keeps all revisions in its memory until they are compacted
			kib, files = moreKiBWire, moreFilesWire
		}
		for _, name := range slices.Sorted(maps.Keys(now[node])) {
			was, is := w.result.Before[node][name], now[node][name]
			if is.Files > was.Files+files || is.Goroutines > was.Goroutines+moreGoroutines || is.KiB > was.KiB+kib {
				all = append(all, fmt.Sprintf("%s of %s held %+v and holds %+v", name, node, was, is))
			}
		}
	}
	if s := w.result.Shims; s.Files > mostShimFiles || s.KiB > mostShimKiB {
		all = append(all, fmt.Sprintf("a shim held %+v", s))
	}
	return all, nil
}

// keepDir is where the logs of a run go that a violation ends.
func keepDir(out string, seed uint64) string {
	return filepath.Join(filepath.Dir(out), fmt.Sprintf("soak-%d", seed))
}

// RunTo is Run that writes its result to a file, and answers what is wrong with it.
func RunTo(ctx context.Context, opts Options, out string) error {
	opts.Keep = keepDir(out, opts.Seed)
	if err := os.RemoveAll(opts.Keep); err != nil {
		return err
	}
	result, err := Run(ctx, opts)
	if werr := harness.WriteResult(out, result); err == nil {
		err = werr
	}
	if err != nil {
		return fmt.Errorf("seed %d: %w", opts.Seed, err)
	}
	return result.Check(opts)
}

// journals are the VMs of a node's directory, NAMESPACE/ID each. A directory that cannot be read is
// an error: it could hold what is left.
func journals(dir string) (vms []string, err error) {
	namespaces, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, ns := range namespaces {
		ids, err := os.ReadDir(filepath.Join(dir, ns.Name()))
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			vms = append(vms, ns.Name()+"/"+id.Name())
		}
	}
	return vms, nil
}
