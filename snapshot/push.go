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
	"godwit.dev/godwit/snapshot/store"
)

// Source is what a snapshot is made of. Its files must not change until Push returns,
// those of Spaces until Captured is called.
type Source struct {
	Spaces []Space
	State  *os.File // device state, whole
	Disks  []Disk
}

// Space is the file of an address space: RAM, or a writable disk.
type Space struct {
	Name string // ram0, disk0...
	Disk string // spec.Disk.ID; empty for RAM
	File *os.File
}

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

	Codec       format.Codec // 0: S2; Raw is taken for a frame that hardly shrinks
	Memory      int64        // of pack buffers; default 256 MiB
	Concurrency int          // uploads at once; default 4
	Progress    func(Progress)
	// Captured is called once, when the last page of Spaces has been read.
	Captured func()
}

// Receipt of a committed snapshot.
type Receipt struct {
	Digest  digest.Digest `json:"digest"`
	Tag     string        `json:"tag"`
	Figures Figures       `json:"figures"`
	// Captured is when the last page had been read, Durable when the manifest was
	// stored and verified.
	Captured time.Time `json:"captured"`
	Durable  time.Time `json:"durable"`
}

func (o *Options) defaults() {
	if o.Tag == "" {
		o.Tag = o.Ref.Tag()
	}
	if o.Codec == 0 {
		o.Codec = format.S2
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
	if o.Captured == nil {
		o.Captured = func() {}
	}
}

// Push captures src into st. On error there is no snapshot: nothing refers to what was
// uploaded. Only where the store took the manifest and its answer was lost does a tag
// stay behind, whose digest nobody was told; the next attempt of the operation moves it.
func Push(ctx context.Context, st store.Store, src Source, o Options) (Receipt, error) {
	o.defaults()
	config, err := newConfig(src, o)
	if err != nil {
		return Receipt{}, fmt.Errorf("push snapshot of %s: %w", o.Ref.VM, err)
	}
	p := &push{store: st, src: src, o: o, config: config}
	receipt, err := p.run(ctx)
	if err != nil {
		return Receipt{}, fmt.Errorf("push snapshot of %s: %w", o.Ref.VM, err)
	}
	return receipt, nil
}

func newConfig(src Source, o Options) (*Config, error) {
	c := &Config{Version: ConfigVersion, Ref: o.Ref, Created: time.Now().UTC(), Facts: o.Facts, Spec: o.Spec, Resume: o.Resume}
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
	if src.State == nil {
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

	receipt Receipt
	pushed  atomic.Uint64
}

func (p *push) run(ctx context.Context) (Receipt, error) {
	// The state goes first: a store that takes nothing is found before RAM is read.
	state, err := p.putState(ctx)
	if err != nil {
		return Receipt{}, err
	}
	if err := p.verifyParent(ctx); err != nil {
		return Receipt{}, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(p.o.Concurrency + 2) // and the capture, and the disks
	c := newCapture(p, g, gctx)
	g.Go(func() error {
		if err := c.run(); err != nil {
			return err
		}
		p.receipt.Captured = time.Now()
		p.o.Captured()
		return c.finish()
	})
	g.Go(func() error { return p.putDisks(gctx) })
	if err := g.Wait(); err != nil {
		if ctx.Err() != nil {
			return Receipt{}, context.Cause(ctx)
		}
		return Receipt{}, err
	}
	return p.commit(ctx, c, state)
}

// verifyParent drops packs of the parent that the store has lost: their pages are
// pushed again. A store that cannot say is an error.
func (p *push) verifyParent(ctx context.Context) error {
	if p.o.Parent == nil {
		return nil
	}
	lost, err := p.missing(ctx, p.o.Parent.packBlobs())
	if err != nil {
		return err
	}
	// A pack of another repository is mounted here, or given up as well.
	for _, i := range lost {
		if !p.o.Parent.mount(ctx, p.store, i) {
			p.o.Parent.drop(i)
		}
	}
	return nil
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
