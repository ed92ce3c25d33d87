// Package exitwatch tells at once when the shim of one of a node's VMs has ended and left its
// journal.
package exitwatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/shim/proc"
)

// journalName is the file that names a VM's shim; each write replaces it.
const journalName = "node.json"

// fenced is the phase of an attempt that never runs here.
const fenced = "FENCED"

// watcher knows which shims are waited for.
type watcher struct {
	dir  string
	died func(namespace, id string)
	wait sync.WaitGroup

	mu      sync.Mutex
	watched map[string]proc.ID // by the VM's directory; one that died stays until it is another
}

// Watch calls died for each VM below dir, a directory for each namespace and in it one for each
// VM. It does so if the VM's journal names a process that has ended, once for each process. It
// also does so if the journal is a fence that names none, once for each write of it. Calls for
// several VMs come at the same time. Watch returns when ctx ends, or when the kernel grants no
// more watches.
func Watch(ctx context.Context, dir string, died func(namespace, id string)) error {
	err := watch(ctx, dir, died)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("watch shims: %w", err)
}

func watch(ctx context.Context, dir string, died func(namespace, id string)) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{dir: dir, died: died, watched: map[string]proc.ID{}}
	defer w.wait.Wait()
	defer cancel()
	t, err := newTree()
	if err != nil {
		return err
	}
	defer t.close()
	defer context.AfterFunc(ctx, t.close)()
	for err = w.scan(ctx, t); err == nil; {
		var changed []string
		if changed, err = t.next(); err == nil {
			err = w.handle(ctx, t, changed)
		}
	}
	return err
}

// handle looks at what has changed: a journal, the directory of a VM, or more than that.
func (w *watcher) handle(ctx context.Context, t *tree, changed []string) error {
	for _, path := range changed {
		rel, err := filepath.Rel(w.dir, path)
		if err != nil {
			return err
		}
		switch strings.Count(rel, "/") {
		case 0: // a namespace, or, after an overflow, everything
			err = w.scan(ctx, t)
		case 1:
			err = w.enter(ctx, t, path)
		case 2:
			if filepath.Base(path) == journalName {
				w.watchShim(ctx, filepath.Dir(path), true)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// enter puts the directory of a VM under watch, and then looks: what comes later is an
// event.
func (w *watcher) enter(ctx context.Context, t *tree, vm string) error {
	if err := t.add(vm); err != nil {
		return err
	}
	w.watchShim(ctx, vm, false)
	return nil
}

// scan enters every VM, and forgets those that are gone.
func (w *watcher) scan(ctx context.Context, t *tree) error {
	if err := t.add(w.dir); err != nil {
		return err
	}
	namespaces, err := os.ReadDir(w.dir)
	if err != nil {
		return err
	}
	for _, entry := range namespaces {
		ns := filepath.Join(w.dir, entry.Name())
		if err := t.add(ns); err != nil {
			return err
		}
		vms, err := os.ReadDir(ns)
		if absent(err) {
			continue
		}
		if err != nil {
			return err
		}
		for _, vm := range vms {
			if err := w.enter(ctx, t, filepath.Join(ns, vm.Name())); err != nil {
				return err
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.watched, func(dir string, _ proc.ID) bool { _, err := os.Stat(dir); return absent(err) })
	return nil
}

// absent reports whether err says that a file is not there, and not that it cannot be read.
func absent(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// watchShim begins to wait for the shim that the journal in dir names, unless it does so
// already. A fence that was written again is told of again: who wrote it may have had the VM
// between the two, and have kept a successor away.
func (w *watcher) watchShim(ctx context.Context, dir string, written bool) {
	id, err := shimOf(dir)
	if err != nil {
		if !errors.Is(err, errNoShim) { // no later event says it again
			w.wait.Go(func() {
				if pause(ctx) {
					w.watchShim(ctx, dir, written)
				}
			})
		}
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	known, ok := w.watched[dir]
	if again := written && id.PID == 0; ok && known == id && !again {
		return
	}
	w.watched[dir] = id
	w.wait.Go(func() { w.await(ctx, dir, id) })
}

// await tells of the end of a shim whose journal still names it then. What cannot be seen now, for
// want of a descriptor say, is looked at again.
func (w *watcher) await(ctx context.Context, dir string, id proc.ID) {
	for id.Wait(ctx) != nil {
		if !pause(ctx) {
			return
		}
	}
	now, err := shimOf(dir)
	for err != nil && !errors.Is(err, errNoShim) {
		if !pause(ctx) {
			return
		}
		now, err = shimOf(dir)
	}
	// A task that was deleted has no journal, one that was taken over another shim.
	if err == nil && now == id {
		w.died(filepath.Base(filepath.Dir(dir)), filepath.Base(dir))
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && w.watched[dir] == id {
		delete(w.watched, dir)
	}
}

// pause lies between two looks at what could not be seen; false: ctx has ended. A variable for the
// tests.
var pause = func(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Second):
		return ctx.Err() == nil
	}
}

// errNoShim says of a journal that was read, or is proved not to be there, that it names no shim.
var errNoShim = errors.New("no shim")

// shimOf answers the process that a journal names. A fence that is left of a VM that has gone
// names none: the process that left it is done, and the operation that it is about may be
// waiting for its word.
func shimOf(dir string) (proc.ID, error) {
	data, err := os.ReadFile(filepath.Join(dir, journalName))
	if absent(err) {
		return proc.ID{}, errNoShim
	}
	if err != nil {
		return proc.ID{}, err
	}
	var journal struct {
		Phase string  `json:"phase"`
		Shim  proc.ID `json:"shim"`
	}
	if err := json.Unmarshal(data, &journal); err != nil {
		return proc.ID{}, fmt.Errorf("%w: %w", errNoShim, err)
	}
	if journal.Shim.PID == 0 && journal.Phase != fenced {
		return proc.ID{}, errNoShim
	}
	return journal.Shim, nil
}
