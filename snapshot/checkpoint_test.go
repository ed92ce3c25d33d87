package snapshot

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/seal"
)

// instant is what a VM was at one instant.
type instant struct{ ram, disk [32]byte }

// goesOn has a checkpoint taken of a guest that writes until its pause and, as soon as it has
// been read, writes over everything. It answers what the guest was in the pause.
func (w *world) goesOn(t *testing.T, seed uint64, tracker func(*guest) Tracker) (Receipt, instant, *os.File) {
	t.Helper()
	g := newGuest(w, seed)
	next := emptyFile(t, "next")
	var then instant
	o := w.opts
	// However little of the guest has run by then, its disk has changed since it was read.
	write := func() { _, _ = g.disk.WriteAt(randomBytes(rand.New(rand.NewPCG(seed, 78)), 512), 700) }
	o.Live, o.Tracker, o.Budget, o.Next, o.Repository = pausing{g, write}, tracker(g), 50*time.Millisecond, next,
		"repo/uid1"
	o.Captured = func() {
		then = instant{sumFile(t, g.ram), sumFile(t, g.disk)}
		rng := rand.New(rand.NewPCG(seed, 77))
		for at := int64(0); at < ramSize/2; at += 1 << 20 { // half of it changes at once
			_, _ = g.ram.WriteAt(randomBytes(rng, 1<<20), at)
		}
		_, _ = g.disk.WriteAt(randomBytes(rng, 100_000), 0)
	}
	go g.run()
	receipt, err := Push(t.Context(), slow{w.st}, w.src, o)
	if err != nil {
		t.Fatal(err)
	}
	return receipt, then, next
}

// holds wants a snapshot to restore to what the VM was.
func (w *world) holds(t *testing.T, d digest.Digest, want instant) {
	t.Helper()
	s, err := OpenWith(t.Context(), w.st, d, nil, &w.opts.Keys)
	if err != nil {
		t.Fatal(err)
	}
	ram, disk := emptyFile(t, "ram"), emptyFile(t, "disk")
	if err := s.Fill(t.Context(), map[string]*os.File{"ram0": ram, "disk0": disk}, FillOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := (instant{sumFile(t, ram), sumFile(t, disk)}); got != want {
		t.Errorf("snapshot %s is not the VM of its pause: RAM %v, disk %v", d, got.ram == want.ram, got.disk == want.disk)
	}
}

// A checkpoint is the VM of one instant, whatever the VM does the moment after, and
// also where more changes than memory holds: that is sent in the pause, and said so.
func TestCheckpoint(t *testing.T) {
	tracked := func(g *guest) Tracker { return &model{guest: g, between: true} }
	content := func(*guest) Tracker { return nil }
	for name, tt := range map[string]struct {
		tracker func(*guest) Tracker
		memory  int64
		sealed  bool
		inside  bool
	}{
		"tracked":       {tracker: tracked},
		"content":       {tracker: content},
		"sealed":        {tracker: tracked, sealed: true},
		"little memory": {tracker: content, memory: 2, inside: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 31)
			if tt.sealed {
				w.opts.Keys.Locks = seal.Locks{Keys: []seal.Secret{secret(3)}}
			}
			w.opts.Memory = tt.memory
			receipt, then, _ := w.goesOn(t, 4, tt.tracker)
			w.holds(t, receipt.Digest, then)
			if inside := receipt.Inside > 0; inside != tt.inside {
				t.Errorf("%d bytes were sent in the pause", receipt.Inside)
			}
		})
	}
}

// What comes after a checkpoint, a second one or a hibernate, pushes only what is new
// since, and needs no other snapshot.
func TestAfterACheckpoint(t *testing.T) {
	for name, keys := range map[string]Keys{"plain": {}, "sealed": {Locks: seal.Locks{Keys: []seal.Secret{secret(5)}}}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 32)
			w.opts.Keys = keys
			none := func(*guest) Tracker { return nil }
			_, _, next := w.goesOn(t, 5, none)
			quiet := func() { // what the guest wrote since is all that is new
				rng := rand.New(rand.NewPCG(8, 8))
				if _, err := w.src.Spaces[0].File.WriteAt(randomBytes(rng, 10*format.PageSize), 5<<20); err != nil {
					t.Fatal(err)
				}
			}
			before := w.push(t, "op2", next)
			quiet()
			after := w.push(t, "op3", next) // the same parent
			if grown := after.Figures.New - before.Figures.New; grown != 10*format.PageSize {
				t.Errorf("10 pages more cost %d bytes", grown)
			}
			if before.Figures.New > ramSize/2+1<<20 { // what goesOn has written over
				t.Errorf("%d bytes are new of %d resident", before.Figures.New, before.Figures.Resident)
			}
			w.restore(t, after.Digest)
		})
	}
}

// A table that finds no room costs the next snapshot bytes, not this one its life; the one of
// before is not taken for it.
func TestCheckpointWithoutATable(t *testing.T) {
	w := newWorld(t, 34)
	file := emptyFile(t, "next")
	full, err := os.Open(file.Name()) // nothing can be written to it
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	w.opts.Next, w.opts.Repository = full, "repo/uid1"
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil || receipt.Untabled == "" {
		t.Fatalf("a checkpoint whose table finds no room: %v, untabled %q", err, receipt.Untabled)
	}
	if _, err := OpenTable(file); !errdefs.IsNotFound(err) {
		t.Errorf("its table: %v", err)
	}
	w.restore(t, receipt.Digest)
}

// A chain of checkpoints: each refers to pages of all before it.
func TestCheckpointChain(t *testing.T) {
	w := newWorld(t, 33)
	o := w.opts
	var table *os.File
	for i := range 4 {
		w.opts = o
		w.opts.Ref.Operation = string(rune('a' + i))
		if table != nil {
			var err error
			if w.opts.Parent, err = OpenTable(table); err != nil {
				t.Fatal(err)
			}
		}
		w.opts.Next, w.opts.Repository = emptyFile(t, "next"), "repo/uid1"
		rng := rand.New(rand.NewPCG(uint64(i), 3))
		if _, err := w.src.Spaces[0].File.WriteAt(randomBytes(rng, 3*format.PageSize), int64(i)<<20); err != nil {
			t.Fatal(err)
		}
		receipt, err := Push(t.Context(), w.st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && receipt.Figures.New != 3*format.PageSize {
			t.Errorf("checkpoint %d: %d bytes are new", i, receipt.Figures.New)
		}
		w.restore(t, receipt.Digest)
		table = w.opts.Next
	}
}

func (w *world) push(t *testing.T, operation string, table *os.File) Receipt {
	t.Helper()
	o := w.opts
	o.Ref.Operation = operation
	w.opts.Ref.Operation = operation
	var err error
	if o.Parent, err = OpenTable(table); err != nil {
		t.Fatal(err)
	}
	receipt, err := Push(t.Context(), w.st, w.src, o)
	if err != nil {
		t.Fatal(err)
	}
	return receipt
}
