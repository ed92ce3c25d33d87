package snapshot

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/snapshot/store"
)

// tables are those whose pages need no storing, the parent's first, by whose seed pages are
// known at their places: what it has of a golden snapshot's packs is in this repository already.
func (p *push) tables() (list []*Table) {
	for _, t := range []*Table{p.o.Parent, p.again, p.o.Golden} {
		if t != nil {
			list = append(list, t)
		}
	}
	return list
}

// verifyTables drops packs that the store has lost: their pages are pushed again. A store
// that cannot say is an error.
func (p *push) verifyTables(ctx context.Context) error {
	if p.o.Parent != nil && p.o.Golden != nil {
		p.o.Golden.share(p.o.Parent)
	}
	if p.again != nil {
		p.again.dropKnown(p.o.Parent, p.o.Golden)
	}
	known := map[*pack]bool{} // of an earlier table
	for _, t := range p.tables() {
		t.dropSealed(p.key != nil)
		if err := p.verifyTable(ctx, t, known); err != nil {
			return err
		}
	}
	return nil
}

func (p *push) verifyTable(ctx context.Context, t *Table, known map[*pack]bool) error {
	var packs []*pack
	var blobs []v1.Descriptor
	for _, k := range t.packs {
		if !known[k] && !k.dropped {
			packs, blobs = append(packs, k), append(blobs, packDescriptor(k.Pack))
		}
		known[k] = true
	}
	lost, err := p.missing(ctx, blobs)
	if err != nil {
		return err
	}
	if t.own {
		for _, i := range lost {
			packs[i].dropped = true
		}
		for i, k := range packs {
			if !k.dropped { // no manifest lists it
				p.keeper.stored(ctx, blobs[i])
			}
		}
		return nil
	}
	// A pack of another repository is brought here, or given up as well.
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(p.o.Concurrency)
	for _, i := range lost {
		g.Go(func() error {
			if err := p.copyPack(ctx, t.repository, blobs[i]); err != nil {
				packs[i].dropped = true
				return ctx.Err()
			}
			p.keeper.stored(ctx, blobs[i])
			return nil
		})
	}
	return g.Wait()
}

// copyPack has the store take a pack over from another of its repositories. One that does not
// do so gets it from here: packs are sent as they are, which costs less than making them.
func (p *push) copyPack(ctx context.Context, from string, d v1.Descriptor) error {
	c := store.Content{Digest: d.Digest, Size: d.Size, From: from, Open: func() (io.ReadCloser, error) {
		return nil, fmt.Errorf("pack %s is not here: %w", d.Digest, errdefs.ErrNotFound)
	}}
	err := p.store.Put(ctx, store.Blob(d.Digest), c)
	if err == nil || p.o.Source == nil || ctx.Err() != nil {
		return err
	}
	st, err := p.o.Source(from)
	if err != nil {
		return err
	}
	data, err := store.ReadRetried(ctx, st, d.Digest, d.Size)
	if err != nil {
		return err
	}
	if err := p.store.Put(ctx, store.Blob(d.Digest), store.Bytes(data, d.Digest)); err != nil {
		return err
	}
	p.pushed.Add(uint64(d.Size))
	return nil
}
