//go:build integration

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/track"
)

// checkpoints are those of one VM, each by the page table of the one before.
type checkpoints struct {
	*machine
	t      *testing.T
	store  store.Store
	table  *os.File // of the last one; nil: there was none
	going  *track.Going
	paused pages // what RAM was in the last pause
}

// TestNotesGoOn: after a checkpoint the kernel notes what a real VM writes on, so that the next one looks at nothing
// else. Each page of each of them is what RAM was in its pause, under a guest that writes all the time. So it is where
// a worker died in between, whose notes no one believes.
func TestNotesGoOn(t *testing.T) {
	m := newTracked(t)
	layout, err := store.NewLayout(filepath.Join(m.dir, "layout", "uid1"))
	if err != nil {
		t.Fatal(err)
	}
	c := &checkpoints{machine: m, t: t, store: layout}
	whole, rounds := c.take("whole", false), 4
	if harness.Nested() { // where hashing alone takes minutes
		rounds = 2
	}
	for n := range rounds {
		noted := c.take(fmt.Sprintf("noted%d", n), true)
		if noted > whole/4*3 {
			t.Errorf("checkpoint %d looked at %d bytes, the whole RAM is %d", n, noted, whole)
		}
	}
	// A worker that dies has read notes, and leaves none: the shim says so before it starts one.
	if _, err := c.open(t, track.UFFD, track.Continue).Next(false, func(int64, int64) {}); err != nil {
		t.Fatal(err)
	}
	if again := c.take("died", false); again < whole/4*3 {
		t.Errorf("the checkpoint behind a dead worker looked at %d bytes of %d", again, whole)
	}
	c.take("last", true)
}

// take makes a checkpoint without a pass before its pause, and answers how much of RAM that looked at.
func (c *checkpoints) take(operation string, noted bool) uint64 {
	c.t.Helper()
	time.Sleep(harness.Slow(2 * time.Second)) // in which the guest writes
	open := track.New
	if noted {
		open = track.Continue
	}
	c.going = track.GoOn(track.UFFD, c.machine.open(c.t, track.UFFD, open))
	dir := filepath.Join(c.dir, operation)
	if err := os.Mkdir(dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	o := snapshot.Options{
		Ref: snapshot.Ref{VM: "default/vm1", UID: "uid1", Operation: operation, Attempt: 1, Generation: 1},
		Spec: &spec.Spec{Version: 1, Namespace: "default", ID: "vm1", UID: "uid1", Memory: c.memory, VCPUs: 1,
			VMM: spec.VMM{Name: "qemu"}},
		Facts: snapshot.Facts{VMM: "qemu", Version: "10.0", Kernel: "6.18"},
		Live:  c, Tracker: c.going, Next: create(c.t, dir, "table"), Repository: "repo/uid1", Captured: c.goOn,
	}
	if c.table != nil {
		var err error
		if o.Parent, err = snapshot.OpenTable(c.table); err != nil {
			c.t.Fatal(err)
		}
	}
	state := create(c.t, dir, "state")
	if err := os.WriteFile(state.Name(), []byte("state"), 0o600); err != nil {
		c.t.Fatal(err)
	}
	r, err := snapshot.Push(c.t.Context(), c.store, snapshot.Source{State: state,
		Spaces: []snapshot.Space{{Name: "ram0", File: c.ram}}}, o)
	if err != nil || r.Untracked != "" || r.Untabled != "" || !c.going.Noting() {
		c.t.Fatalf("%s: %v, untracked %q, untabled %q", operation, err, r.Untracked, r.Untabled)
	}
	c.table = o.Next
	last := r.Passes[len(r.Passes)-1]
	c.t.Logf("%s: looked at %d of %d bytes in %.1f ms, pushed %d", operation, last.Looked, r.Figures.Resident, last.MS,
		r.Figures.Pushed)
	c.compare(operation, r, create(c.t, dir, "ram"))
	return last.Looked
}

// compare wants each page to be what it was in the pause.
func (c *checkpoints) compare(operation string, r snapshot.Receipt, ram *os.File) {
	c.t.Helper()
	s, err := snapshot.OpenWith(c.t.Context(), c.store, r.Digest, nil, &snapshot.Keys{})
	if err == nil {
		err = s.Fill(c.t.Context(), map[string]*os.File{"ram0": ram}, snapshot.FillOptions{})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	if n := differ(sums(c.t, ram), c.paused); n > 0 {
		c.t.Errorf("%s: %d of %d pages differ", operation, n, len(c.paused))
	}
	if err := os.Truncate(ram.Name(), 0); err != nil {
		c.t.Fatal(err)
	}
}

// differ counts the pages that are not the wanted ones.
func differ(got, want pages) (n int) {
	zero := xxh3.Hash128(make([]byte, pageSize))
	for page, sum := range want {
		if has, ok := got[page]; has != sum && (ok || sum != zero) {
			n++
		}
	}
	for page, sum := range got {
		if _, ok := want[page]; !ok && sum != zero {
			n++
		}
	}
	return n
}

func create(t *testing.T, dir, name string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// Prepare, Pause and Save are those of the VM of a checkpoint.
func (c *checkpoints) Prepare(context.Context) error { return nil }

func (c *checkpoints) Pause(ctx context.Context) error { return c.vm.Pause(ctx) }

func (c *checkpoints) Save(context.Context) (json.RawMessage, error) {
	return json.RawMessage(`{}`), nil
}

// goOn has the VM run on, once it is known what it was.
func (c *checkpoints) goOn() {
	c.paused = sums(c.t, c.ram)
	c.resume()
}
