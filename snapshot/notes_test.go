package snapshot

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/bpf"
	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/precopy"
)

// settling is a VM with notes of its disk.
type settling struct {
	Live
	settle func() error
}

func (s settling) Save(ctx context.Context) (json.RawMessage, error) {
	resume, err := s.Live.Save(ctx)
	if err == nil {
		err = s.settle()
	}
	return resume, err
}

// noted begins notes of the disk of w, whose only writer is this process.
func (w *world) noted(t *testing.T) *bpf.FileNotes {
	t.Helper()
	var at unix.Statfs_t
	dir := t.TempDir()
	if err := unix.Statfs(dir, &at); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 || at.Type != unix.EXT4_SUPER_MAGIC || bpf.NotesFiles() != nil {
		t.Skip("needs root, Linux 6.14, and a directory for temporary files on ext4")
	}
	was := w.src.Spaces[1].File
	info, err := was.Stat()
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, info.Size())
	if _, err := was.ReadAt(data, 0); err != nil {
		t.Fatal(err)
	}
	disk, err := os.Create(filepath.Join(dir, "disk"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { disk.Close() })
	if err := writeAt(disk, data, 0); err != nil {
		t.Fatal(err)
	}
	w.src.Spaces[1].File = disk
	n, err := bpf.NoteFile(t.Context(), disk, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	noted, err := bpf.OpenNoted(n.Map, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(noted.Close)
	w.src.Spaces[1].Notes = noted
	return n
}

// tallied adds up what was told.
type tallied struct {
	precopy.WriteNotes
	bytes int64
}

func (c *tallied) Take(written func(offset, end int64)) {
	c.WriteNotes.Take(func(offset, end int64) { c.bytes += end - offset; written(offset, end) })
}

// The pause of a snapshot reads of a noted disk what was written since the last pass. The snapshot is the disk of
// the pause. Notes that no one has settled, that have ended, or without a pass before the pause have all of it read.
func TestNotedDisk(t *testing.T) {
	for name, tt := range map[string]struct {
		settle func(*bpf.FileNotes) error
		once   bool // no pass before the pause
		whole  bool
	}{
		"settled":   {settle: func(n *bpf.FileNotes) error { return n.Settle(1) }},
		"unsettled": {settle: func(*bpf.FileNotes) error { return nil }, whole: true},
		"ended": {settle: func(n *bpf.FileNotes) error {
			if err := n.Settle(1); err != nil {
				return err
			}
			return n.Close()
		}, whole: true},
		"other writer": {settle: func(n *bpf.FileNotes) error { _ = n.Settle(2); return nil }, whole: true},
		"no pass":      {settle: func(n *bpf.FileNotes) error { return n.Settle(1) }, once: true, whole: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 65)
			notes := w.noted(t)
			told := &tallied{WriteNotes: w.src.Spaces[1].Notes}
			w.src.Spaces[1].Notes = told
			g, rng := newGuest(w, 11), rand.New(rand.NewPCG(12, 12))
			before := func() {
				if err := writeAt(g.disk, randomBytes(rng, 5*format.PageSize), 40*format.PageSize+9); err != nil {
					t.Error(err)
				}
			}
			o := w.opts
			o.Live, o.Budget = settling{pausing{g, before}, func() error { return tt.settle(notes) }}, 1<<40
			if tt.once {
				o.Budget = 0
			}
			var then instant
			o.Captured = func() {
				then = instant{sumFile(t, g.ram), sumFile(t, g.disk)}
				_ = writeAt(g.disk, randomBytes(rng, 100_000), 0)
			}
			go g.run()
			receipt, err := Push(t.Context(), slow{w.st}, w.src, o)
			if err != nil {
				t.Fatal(err)
			}
			w.holds(t, receipt.Digest, then)
			if len(receipt.Disks) != 1 {
				t.Fatalf("read in the pause: %+v", receipt.Disks)
			}
			read, size := receipt.Disks[0].Read, uint64(w.opts.Spec.Disks[1].Size)
			if whole := read > size/2; whole != tt.whole || receipt.Disks[0].Noted == tt.whole {
				t.Errorf("the pause has read %d of %d bytes: %+v", read, size, receipt.Disks)
			}
			if !tt.whole && read > uint64(told.bytes) {
				t.Errorf("the pause has read %d bytes, %d were noted in all", read, told.bytes)
			}
		})
	}
}

// The pause of a live move reads of a noted disk what was written since the last pass. The destination has the
// disk of the pause.
func TestSendNotedDisk(t *testing.T) {
	for _, settled := range []bool{true, false} {
		w := newWorld(t, 66)
		notes := w.noted(t)
		g, rng := newGuest(w, 13), rand.New(rand.NewPCG(14, 14))
		a := newArrival(t, w, false)
		o := w.sending(g, &model{guest: g, between: true})
		o.Budget = 1 << 40
		before := func() {
			if err := writeAt(g.disk, randomBytes(rng, 3*format.PageSize), 77*format.PageSize+5); err != nil {
				t.Error(err)
			}
		}
		o.Live = settling{pausing{g, before}, func() error {
			if !settled {
				return nil
			}
			return notes.Settle(1)
		}}
		from, to := secure(t)
		close(g.stopped)
		sent, err, rerr := move(t, w, a, o, from, to)
		if err != nil || rerr != nil {
			t.Fatal(err, rerr)
		}
		a.check(t, w, g, sent)
		last := sent.Passes[len(sent.Passes)-1]
		if looked := last.Looked; settled != (looked < uint64(w.opts.Spec.Disks[1].Size)/2) || looked < 4*format.PageSize {
			t.Errorf("settled: %v; the pause has looked at %d bytes", settled, looked)
		}
	}
}
