package snapshot

import (
	"context"
	"fmt"
	"os"

	"godwit.dev/godwit/snapshot/restore"
)

// Waiting is the RAM of a VM that runs while its pages come: package track has it.
type Waiting = restore.Waiting

// FillOptions of Fill. The zero value will do.
type FillOptions struct {
	Memory      int64 // of packs under way; default 256 MiB
	Concurrency int   // downloads at once; default 4
	Progress    func(Progress)
	// Table, if not nil, becomes the page table of the restored VM, for the next Push;
	// Repository is where the packs came from.
	Table      *os.File
	Repository string

	patience restore.Patience // of the tests
}

func (o FillOptions) restore() restore.Options {
	out := restore.Options{Memory: o.Memory, Concurrency: o.Concurrency, Table: o.Table, Repository: o.Repository,
		Patience: o.patience}
	if o.Progress != nil {
		out.Progress = func(p restore.Progress) {
			o.Progress(Progress{Step: p.Step, Done: p.Done, Total: p.Total, Waiting: p.Waiting, Settled: p.Settled})
		}
	}
	return out
}

func (s *Snapshot) source() restore.Source {
	return restore.Source{Store: s.store, Index: s.index, Encoded: s.indexBlob, Packs: s.parts.packs, Keys: s.keys}
}

// Fill writes the pages of address spaces, by name, into files that hold no data yet (restore.Fill).
func (s *Snapshot) Fill(ctx context.Context, files map[string]*os.File, o FillOptions) error {
	return s.restoring(restore.Fill(ctx, s.source(), files, o.restore()))
}

// FillWaiting brings the pages of a space to a VM that runs and waits for them (restore.Postcopy). Once
// all is there it calls whole, while it answers on.
func (s *Snapshot) FillWaiting(ctx context.Context, space string, ram Waiting, o FillOptions,
	whole func(context.Context) error) error {
	return s.restoring(restore.Postcopy(ctx, s.source(), space, ram, o.restore(), whole))
}

// Check wants every pack that a restore reads to be in the store (restore.Check).
func (s *Snapshot) Check(ctx context.Context) error {
	return s.restoring(restore.Check(ctx, s.source()))
}

func (s *Snapshot) restoring(err error) error {
	if err != nil {
		return fmt.Errorf("restore snapshot %s: %w", s.Digest, err)
	}
	return nil
}
