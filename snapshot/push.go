package snapshot

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/precopy"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/store"
)

// Source is what a snapshot is made of. Its files must not change until Push returns,
// those of Spaces until Captured is called. With Options.Live those of Spaces may
// change until Push has paused the VM, and its Save writes State.
type Source struct {
	Spaces []Space
	State  *os.File // device state, whole
	Disks  []Disk
}

// What a push and a move of a VM that runs have in common is package precopy's.
type (
	Space       = precopy.Space
	Live        = precopy.Live
	Tracker     = precopy.Tracker
	Pass        = precopy.Pass
	DiskInPause = precopy.DiskInPause
)

// Disk is the file of a read-only disk.
type Disk struct {
	ID     string
	Digest digest.Digest
	File   *os.File
	// From names a repository of the same store that may hold the disk already.
	From string
}

// Options of Push. Ref and Spec are required.
type Options struct {
	Ref    Ref
	Tag    string // default: Ref.Tag()
	Spec   *spec.Spec
	Facts  Facts
	Resume json.RawMessage
	Parent *Table // pages that the store has already; nil: none
	Golden *Table // pages of a golden snapshot, in addition to the parent's; nil: none
	Keys   Keys   // the snapshot is sealed and signed, if these do
	// Source opens the repository that a table is of: what the store does not take over from
	// there by itself is copied. Nil: it is pushed anew.
	Source func(repository string) (store.Store, error)
	// Make, if not nil, has a golden snapshot made of the pages: nothing of the VM but them
	// is stored.
	Make *GoldenInfo

	Codec       format.Codec // 0: CodecAuto; Raw is taken for a frame that hardly shrinks
	Spare       func() bool  // whether the host's cores have time for Zstd; nil: they have
	Memory      int64        // of packs and frames under way; default 256 MiB
	Concurrency int          // uploads at once; default 4
	Progress    func(Progress)
	// HoldEvery is how often packs of a push that takes long are kept from being collected;
	// default 15 minutes.
	HoldEvery time.Duration
	// Captured is called once, when the last page of Spaces has been read.
	Captured func()

	// Live, if not nil, is the VM, which runs: it is paused when pages were pushed for as
	// long as that shortens the pause, up to Budget. 0: it is paused at once.
	Live   Live
	Budget time.Duration
	// Tracker knows which pages of RAM the VM has written; nil: all are compared.
	Tracker Tracker
	// Keeper keeps what is sent on the node; nil: it is not kept. Nothing is read from it.
	Keeper store.Keeper
	// Next, if not nil, becomes the page table for the snapshot after this one, once Push has
	// succeeded. It is owner-only, and Repository that of the store.
	Next       *os.File
	Repository string
	// Finished, if not nil, is an owner-only file in which a push leaves what the store has of it
	// if it fails: the next one of the same VM, by the same Parent, goes on with that. Repository
	// is needed.
	Finished *os.File
	// Still says that Spaces do not change after Captured either, until Push returns.
	Still bool
}

// CodecAuto takes MinLZ as long as packs leave as fast as they are filled. Where they pile up and cores are idle it
// takes Zstd, which takes four times the time and makes frames a third smaller. Where they pile up and no core is
// idle it takes S2, between both.
const CodecAuto format.Codec = 0

// PageCost is the memory, in bytes, that a push may take for each page of Spaces, in addition to Options.Memory. It
// is what was seen of the page and where, and the page's entry in the parent's table and in the index. Half of that
// is added as garbage. TestPageCost measures it.
const PageCost = 512

// Receipt of a committed snapshot.
type Receipt struct {
	Digest  digest.Digest `json:"digest"`
	Tag     string        `json:"tag"`
	Figures Figures       `json:"figures"`
	// Captured is when the last page had been read, Durable when the manifest was
	// stored and verified.
	Captured time.Time `json:"captured"`
	Durable  time.Time `json:"durable"`
	// Passes are those of a VM that ran, the last one in its pause. Untracked is why its
	// tracker failed.
	Passes    []Pass `json:"passes,omitempty"`
	Untracked string `json:"untracked,omitempty"`
	// Moved are bytes of pages that were packed anew, because a restore would have read too much in addition to them.
	// They are in Figures.New, too.
	Moved uint64 `json:"movedBytes,omitempty"`
	// Ungolden is why a golden snapshot was left aside.
	Ungolden string `json:"ungolden,omitempty"`
	// Orphaned is why the page table of its parent was left aside.
	Orphaned string `json:"orphaned,omitempty"`
	// Untabled is why the next snapshot will find no page table of this one.
	Untabled string `json:"untabled,omitempty"`
	// Dead are bytes of Pushed that nothing refers to: of pages that changed again.
	Dead uint64 `json:"deadBytes,omitempty"`
	// Inside are bytes that were sent while the VM stood still: more than half of Memory had
	// changed.
	Inside uint64 `json:"insideBytes,omitempty"`
	// Again are bytes of packs that a push before this one, which failed, had stored, and that
	// are in use.
	Again uint64 `json:"againBytes,omitempty"`
	// Disks are those that were read while the VM stood still: where they lie none is cloned.
	Disks []DiskInPause `json:"disks,omitempty"`
}

func (o *Options) defaults() {
	if o.Tag == "" && o.Make != nil {
		o.Tag = o.Make.Tag()
	} else if o.Tag == "" {
		o.Tag = o.Ref.Tag()
	}
	if o.Memory <= 0 {
		o.Memory = 256 << 20
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 4
	}
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	if o.HoldEvery <= 0 {
		o.HoldEvery = holdEvery
	}
	if o.Keeper == nil {
		o.Keeper = store.NoKeeper{}
	}
	if o.Spare == nil {
		o.Spare = func() bool { return true }
	}
	if o.Captured == nil {
		o.Captured = func() {}
	}
}

// Push captures src into st. On error there is no snapshot: nothing refers to what was uploaded. One case leaves a
// tag: the store took the manifest and its answer was lost. No caller was told its digest; the next attempt of the
// operation moves it.
func Push(ctx context.Context, st store.Store, src Source, o Options) (Receipt, error) {
	o.defaults()
	config, err := newConfig(src, o)
	if err == nil {
		err = o.Keys.serve()
	}
	if err != nil {
		return Receipt{}, fmt.Errorf("push snapshot of %s: %w", o.Ref.VM, err)
	}
	p := &push{store: st, src: src, o: o, config: config}
	if o.Keys.Locks.On() {
		p.key = seal.NewKey()
	}
	p.keeper = newKeeper(p)
	p.goOn()
	receipt, err := p.run(ctx)
	if err != nil {
		return Receipt{}, fmt.Errorf("push snapshot of %s: %w", o.Ref.VM, err)
	}
	return receipt, nil
}

func newConfig(src Source, o Options) (*Config, error) {
	c := &Config{Version: ConfigVersion, Ref: o.Ref, Created: time.Now().UTC(), Facts: o.Facts, Spec: o.Spec,
		Resume: o.Resume}
	for _, s := range src.Spaces {
		size, err := fileSize(s.File)
		if err != nil {
			return nil, fmt.Errorf("space %s: %w", s.Name, err)
		}
		c.Spaces = append(c.Spaces, SpaceInfo{Name: s.Name, Disk: s.Disk, Size: size})
		if s.Disk == "" {
			c.Figures.RAM += uint64(size)
		}
	}
	for _, d := range src.Disks {
		size, err := fileSize(d.File)
		if err != nil {
			return nil, fmt.Errorf("disk %s: %w", d.ID, err)
		}
		c.Disks = append(c.Disks, DiskInfo{ID: d.ID, Digest: d.Digest, Size: size})
	}
	if src.State == nil && o.Make == nil {
		return nil, invalid("state", "missing")
	}
	return c, c.validate()
}

func fileSize(f *os.File) (int64, error) {
	if f == nil {
		return 0, fmt.Errorf("no file: %w", errdefs.ErrInvalidArgument)
	}
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// push is one run of Push.
type push struct {
	store  store.Store
	src    Source
	o      Options
	config *Config
	key    *seal.Key // nil: not sealed

	finished *finished // nil: nothing is kept for another push
	again    *Table    // of the push before, which failed; nil: none

	receipt Receipt
	pushed  atomic.Uint64
	keeper  *keeper
}

func (p *push) run(ctx context.Context) (Receipt, error) {
	state, err := p.prepare(ctx)
	if err != nil {
		return Receipt{}, err
	}
	g, gctx := errgroup.WithContext(ctx)
	c := newCapture(p, g, gctx)
	defer c.close() // after the commit: to unmap RAM takes long
	g.Go(func() error {
		if err := c.run(); err != nil {
			return err
		}
		if p.o.Live != nil && p.o.Make == nil { // it has been saved
			g.Go(func() (err error) {
				state, err = p.putState(gctx)
				return err
			})
		}
		return c.finish()
	})
	g.Go(func() error { return p.putDisks(gctx) })
	if err := waitGroup(ctx, g); err != nil {
		return Receipt{}, err
	}
	if p.o.Make != nil {
		return p.commit(ctx, c, nil)
	}
	return p.commit(ctx, c, []v1.Descriptor{state})
}

// prepare stores the state, or of a VM that runs OCI's empty blob: a store that takes nothing is found before RAM
// is read. In addition it asks for the packs of tables.
func (p *push) prepare(ctx context.Context) (state v1.Descriptor, err error) {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		if p.o.Live == nil && p.o.Make == nil {
			state, err = p.putState(gctx)
		} else {
			_, err = p.putBytes(gctx, v1.MediaTypeEmptyJSON, v1.DescriptorEmptyJSON.Data)
		}
		return err
	})
	g.Go(func() error { return p.verifyTables(gctx) })
	return state, waitGroup(ctx, g)
}

// waitGroup waits for the group. That ctx has ended is a better reason than what came of it.
func waitGroup(ctx context.Context, g *errgroup.Group) error {
	err := g.Wait()
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// missing returns which blobs the store does not have.
func (p *push) missing(ctx context.Context, blobs []v1.Descriptor) ([]int, error) {
	gone := make([]bool, len(blobs))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2 * p.o.Concurrency)
	for i, b := range blobs {
		g.Go(func() error {
			info, err := p.store.Stat(ctx, store.Blob(b.Digest))
			switch {
			case errdefs.IsNotFound(err):
				gone[i] = true
			case err != nil:
				return err
			case info.Size >= 0 && info.Size != b.Size:
				return fmt.Errorf("blob %s: %d bytes stored, %d expected: %w", b.Digest, info.Size, b.Size, errdefs.ErrDataLoss)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var list []int
	for i, g := range gone {
		if g {
			list = append(list, i)
		}
	}
	return list, nil
}
