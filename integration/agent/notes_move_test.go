//go:build integration

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
	wire "godwit.dev/godwit/snapshot/stream"
	"godwit.dev/godwit/snapshot/track"
	"godwit.dev/godwit/vmm/vmmtest"
)

// TestNotesOfAMove: the first snapshot after a live move looks at what was written since the last one. That was at the
// source or at the destination. Each page of it is what RAM was in its pause.
func TestNotesOfAMove(t *testing.T) {
	m := newTracked(t)
	layout, err := store.NewLayout(filepath.Join(m.dir, "layout", "uid1"))
	if err != nil {
		t.Fatal(err)
	}
	c := &checkpoints{machine: m, t: t, store: layout}
	whole := c.take("whole", false)
	moves := 2
	if harness.Nested() { // where hashing alone takes minutes
		moves = 1
	}
	for n := range moves {
		c.live(fmt.Sprint("move", n))
		for i := range 2 {
			noted := c.take(fmt.Sprintf("moved%d-%d", n, i), true)
			if noted > whole/4*3 {
				t.Errorf("checkpoint %d after move %d looked at %d bytes, the whole RAM is %d", i, n, noted, whole)
			}
		}
	}
}

// live moves the VM to another process, whose RAM is another file.
func (c *checkpoints) live(name string) {
	t := c.t
	t.Helper()
	dir := filepath.Join(c.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ram, state, arrived, table := create(t, dir, "ram"), create(t, dir, "sent"), create(t, dir, "state"),
		create(t, dir, "table")
	if err := ram.Chown(vmmtest.FirstUser, -1); err != nil {
		t.Fatal(err)
	}
	ref := snapshot.Ref{VM: "default/vm1", UID: "uid1", Operation: name, Attempt: 1, Generation: 1}
	area := wire.Area{Name: "ram0", Size: int64(c.memory)}
	var written *wire.Written
	var armed time.Duration
	target := wire.Target{
		Ref: wire.Ref(ref), Spaces: []wire.TargetSpace{{Area: area, File: ram}}, State: arrived, Table: table,
		Base: func(f *os.File) wire.Base {
			b, err := snapshot.OpenBase(f, "ram0", area.Size)
			if err != nil {
				t.Error(err)
				return nil
			}
			return b
		},
		Complete: func(context.Context) error { return nil },
		Load: func(ctx context.Context, _ string, _ wire.End, w *wire.Written) error {
			written, armed = w, c.load(ctx, ram, arrived, w)
			return nil
		},
	}
	from, to := net.Pipe()
	type result struct {
		snapshot.Sent
		err error
	}
	done := make(chan result, 1)
	tracker, source := c.open(t, track.UFFD, track.New), snapshot.Source{State: state,
		Spaces: []snapshot.Space{{Name: "ram0", File: c.ram}}}
	go func() {
		sent, err := snapshot.Send(t.Context(), from, source, snapshot.SendOptions{Ref: ref, Live: &saved{c, state},
			Budget: 50 * time.Millisecond, Tracker: tracker, Table: c.table})
		done <- result{sent, err}
	}()
	if err := errors.Join(wire.Receive(t.Context(), to, target), to.Close()); err != nil {
		t.Fatal(err)
	}
	sent := <-done
	if sent.err != nil {
		t.Fatal(sent.err)
	}
	bytes := int64(0)
	for _, p := range written.Parts {
		bytes += p.End - p.Offset
	}
	t.Logf("%s: %d passes, %d bytes of the table were written, in %d parts; armed in %v", name, len(sent.Passes), bytes,
		len(written.Parts), armed)
	c.table = table
	c.resume()
}

// saved has the device state saved in the pause.
type saved struct {
	*checkpoints
	state *os.File
}

func (s *saved) Save(ctx context.Context) (json.RawMessage, error) {
	return json.RawMessage(`{}`), s.vm.SaveState(ctx, s.state)
}

// load has another process take the VM up, and note what that writes.
func (c *checkpoints) load(ctx context.Context, ram, state *os.File, written *wire.Written) (took time.Duration) {
	c.t.Helper()
	before := sums(c.t, c.ram)
	if err := c.vm.Kill(ctx); err != nil {
		c.t.Fatal(err)
	}
	c.ram = ram
	c.mapped = func(context.Context) error {
		if written == nil {
			return errors.New("it is not known what was written")
		}
		var spans []track.Span
		for _, p := range written.Parts {
			spans = append(spans, track.Span(p))
		}
		begun := time.Now()
		defer func() { took = time.Since(begun) }()
		p := c.vm.Process()
		return track.ArmBut(p.PID, p.Userfault, ram, spans)
	}
	c.incarnation(true)
	c.paused = sums(c.t, ram)
	if n := differ(c.paused, before); n > 0 {
		c.t.Errorf("%d of %d pages came as other ones", n, len(before))
	}
	if _, err := state.Seek(0, 0); err != nil {
		c.t.Fatal(err)
	}
	if err := c.vm.LoadState(ctx, state); err != nil {
		c.t.Fatal(err)
	}
	return took
}
