//go:build integration

package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/internal/failpoint"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
)

// Sides of the step of a live move that has the kernel note what its VM writes.
var (
	unarmed = row{"before the notes", &edge{point{destination, "notes.Arm", 1}, failpoint.Before}, 0}
	armed   = row{"behind the notes", &edge{point{destination, "notes.Arm", 1}, failpoint.After}, 0}
)

// notesDeaths are those around that step, and the one after which a successor has a VM with notes.
func notesDeaths() (all []death) {
	for _, r := range []row{unarmed, armed} {
		all = append(all, death{r.name + ", destination shim", r, shimOf(destination), []end{stays}},
			death{r.name + ", destination worker", r, heldWorkerOf(destination), []end{stays}},
			death{r.name + ", source worker", r, heldWorkerOf(source), []end{stays}})
	}
	return append(all, death{owned.name + ", destination shim", owned, shimOf(destination), []end{moved}})
}

// notesSelection is what runs without GODWIT_CRASH=full.
var notesSelection = []string{
	"before the notes, source worker", "behind the notes, destination worker", "behind the notes, destination shim",
	"OWN written, destination shim",
}

func shimOf(r role) func(*moveRun, context.Context) (func() error, error) {
	return func(j *moveRun, ctx context.Context) (func() error, error) {
		pid, err := hostPID(j.at(r), note(j.at(r), j.vm).Shim.PID)
		if err != nil {
			return nil, err
		}
		return nil, kill(ctx, pid)
	}
}

// heldWorkerOf kills a worker that is there while the program at the point stands.
func heldWorkerOf(r role) func(*moveRun, context.Context) (func() error, error) {
	return func(j *moveRun, ctx context.Context) (func() error, error) {
		pid, err := workerPID(j.at(r))
		if err != nil {
			return nil, err
		}
		return nil, kill(ctx, pid)
	}
}

// TestCrashNotes kills shims and workers around the step of a live move that has the kernel note what its VM writes
// (ADR 0292). Wherever the VM is after that, its next snapshot is its RAM, page by page. What the journal calls noted
// is all that this snapshot looks at.
func TestCrashNotes(t *testing.T) {
	w := &notesWorld{moveWorld: makeMoveWorld(t, 0, harness.Options{Nodes: 2, Config: func(n *harness.Node) string {
		return fmt.Sprintf("cache.packs = 0\nregistry.layout = %q\n", filepath.Join(filepath.Dir(n.Dir), "store"))
	}})}
	n, err := w.awake(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := w.slept(t, n)
	w.whole = s.looked
	ok := t.Run("nobody dies", func(t *testing.T) {
		n, err := w.home(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		if s := w.slept(t, n); !s.armed {
			t.Error("the kernel has noted nothing behind a live move")
		}
	})
	live, full := scripts()[0], os.Getenv("GODWIT_CRASH") == "full"
	for _, h := range notesDeaths() {
		if !ok {
			break // the next one would begin with a VM that is not known
		}
		if !full && !slices.Contains(notesSelection, h.name) {
			continue
		}
		ok = t.Run(h.name, func(t *testing.T) {
			if err := w.injure(t, live, h); err != nil {
				t.Fatal(errors.Join(err, w.successors(), w.Logs()))
			}
			rec, err := w.record(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			s := w.slept(t, w.node(rec.GetOwner().GetNode()))
			if h.row.name == owned.name && !s.armed {
				t.Error("a successor has a VM without notes")
			}
		})
	}
	if err := errors.Join(w.remove(t.Context()), w.forgotten(t.Context())); err != nil {
		t.Error(err)
	}
}

// notesWorld is one whose snapshots are in a directory that a test reads.
type notesWorld struct {
	*moveWorld
	whole int64 // of RAM that a snapshot without notes looks at
}

// sleptVM is a VM that slept and woke.
type sleptVM struct {
	armed  bool  // by the journal before
	looked int64 // by the first pass
}

// slept has a VM sleep, compares each page of its snapshot with its RAM, and wakes it there.
func (w *notesWorld) slept(t *testing.T, n *harness.Node) (s sleptVM) {
	t.Helper()
	s.armed = note(n, w.vm).Armed
	err := w.hibernated(t.Context(), n, &s)
	if err == nil {
		begun := time.Now()
		if _, err = w.keeper.RunGodwit(t.Context(), "wake", "--on", n.Name, w.vm); err == nil {
			err = w.same(t.Context(), begun)
		}
	}
	if err != nil {
		t.Fatal(errors.Join(err, w.successors(), w.Logs()))
	}
	t.Logf("noted %t: the snapshot looked at %d bytes first, of the whole RAM at %d", s.armed, s.looked, w.whole)
	if s.armed && s.looked*2 > w.whole {
		t.Errorf("with notes the snapshot looked at %d bytes, of the whole RAM at %d", s.looked, w.whole)
	}
	return s
}

func (w *notesWorld) hibernated(ctx context.Context, n *harness.Node, s *sleptVM) error {
	if err := w.forget(w.Nodes()...); err != nil {
		return err
	}
	h, err := w.arm(n, edge{point{source, "Machine.Vote", 1}, failpoint.Before})
	if err != nil {
		return err
	}
	defer h.release()
	var out string
	done := make(chan error, 1)
	go func() {
		var err error
		out, err = n.RunGodwit(ctx, "-o", "json", "hibernate", "--end-execs", w.vm)
		done <- err
	}()
	if _, err := h.reached(ctx, func() error { return nil }); err != nil {
		return err
	}
	ram, err := copied(n, filepath.Join(w.Dir, "ram"))
	h.release()
	if err = errors.Join(err, <-done); err != nil {
		return err
	}
	defer ram.Close()
	var r struct {
		Operation struct{ Digest digest.Digest }
		Figures   struct {
			Passes []struct {
				Looked json.Number `json:"lookedBytes"`
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Figures.Passes) == 0 {
		return fmt.Errorf("read what hibernate says: %w: %s", err, out)
	}
	if s.looked, err = r.Figures.Passes[0].Looked.Int64(); err != nil {
		return err
	}
	return w.compare(ctx, r.Operation.Digest, ram)
}

// copied copies the RAM of a VM that stands.
func copied(n *harness.Node, path string) (*os.File, error) {
	from, err := n.OpenRAM()
	if err != nil {
		return nil, err
	}
	defer from.Close()
	to, err := os.Create(path)
	if err == nil {
		_, err = io.Copy(to, from)
	}
	return to, err
}

// compare wants each page of a snapshot to be that of RAM.
func (w *notesWorld) compare(ctx context.Context, d digest.Digest, ram *os.File) error {
	dirs, err := filepath.Glob(filepath.Join(w.Dir, "store", "*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "blobs", "sha256", d.Encoded())); err != nil {
			continue
		}
		layout, err := store.NewLayout(dir)
		if err != nil {
			return err
		}
		s, err := snapshot.OpenWith(ctx, layout, d, nil, &snapshot.Keys{})
		if err != nil {
			return err
		}
		return w.fillAndCompare(ctx, s, ram)
	}
	return fmt.Errorf("none of the directories %q has snapshot %s", dirs, d)
}

func (w *notesWorld) fillAndCompare(ctx context.Context, s *snapshot.Snapshot, ram *os.File) error {
	info, err := ram.Stat()
	if err != nil {
		return err
	}
	got, err := os.Create(filepath.Join(w.Dir, "filled"))
	if err != nil {
		return err
	}
	defer got.Close()
	if err := got.Truncate(info.Size()); err != nil {
		return err
	}
	if err := s.Fill(ctx, map[string]*os.File{"ram0": got}, snapshot.FillOptions{}); err != nil {
		return err
	}
	const page = 4096
	differ, a, b := 0, make([]byte, page), make([]byte, page)
	for at := int64(0); at < info.Size(); at += page {
		if _, err := ram.ReadAt(a, at); err != nil {
			return err
		}
		if _, err := got.ReadAt(b, at); err != nil {
			return err
		}
		if !bytes.Equal(a, b) {
			differ++
		}
	}
	if differ > 0 {
		return fmt.Errorf("%d of %d pages of snapshot %s are not what RAM was", differ, info.Size()/page, s.Digest)
	}
	return nil
}
