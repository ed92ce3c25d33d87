package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/transition"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// pushed notes a snapshot that stands in the registry.
func (r *simRounds) pushed(digest string, ref *machinev1.Ref) {
	if r != nil {
		r.tags = append(r.tags, Leftover{Tag: digest, Digest: digest, UID: r.uid, Operation: ref.GetOperation(),
			Generation: ref.GetGeneration()})
	}
}

// simRegistry is a node's way to the registry.
type simRegistry struct {
	simStore
	h *simHost
}

func (g simRegistry) fails(call string) error {
	g.h.late()
	if g.h.unread > 0 || g.h.chance(5) {
		return fmt.Errorf("registry: %s: %w", call, errdefs.ErrUnavailable)
	}
	return nil
}

// Leftovers may be cut short, or old when they come.
func (g simRegistry) Leftovers(context.Context, string) ([]Leftover, error) {
	err := g.fails("list")
	all := slices.Clone(g.h.rounds.tags)
	if g.h.chance(10) {
		all = all[:len(all)/2]
	}
	return all, cmp.Or(err, g.fails("list"))
}

// Exists answers what is there, if it answers.
func (g simRegistry) Exists(_ context.Context, _, digest string) (bool, error) {
	err := g.fails("look")
	_, there := g.h.blobs[digest]
	return there && err == nil, err
}

// Drop watches over what is deleted: no operation that the record has open wants it, and it owns no VM.
func (g simRegistry) Drop(ctx context.Context, _, digest, _, _ string) error {
	if err := g.fails("delete"); err != nil {
		return err
	}
	r := g.h.rounds
	st, err := r.s.memory.Load(ctx, vm, transition.Asked{})
	rec, op := st.Record, st.Record.GetOperation()
	over := op.GetPhase() == nodev1.Phase_PHASE_ABORTING // as a store says that was put back after the snapshot was found
	if err != nil || rec.GetOwner().GetDigest() == digest || op.GetDigest() == digest && !over {
		r.s.violated("I3: snapshot %s is deleted, which is wanted: %v", digest, rec)
	}
	r.kept(rec, digest)
	r.tags = slices.DeleteFunc(r.tags, func(l Leftover) bool { return l.Digest == digest })
	delete(r.s.blobs, digest)
	r.dropped++
	return g.fails("delete")
}

func (g simRegistry) Collect(context.Context, string, time.Duration, bool) (int, uint64, error) {
	return 0, 0, g.fails("collect")
}

func (g simRegistry) Abandoned(context.Context, func(string) bool, time.Duration, bool) ([]Freed, error) {
	return nil, g.fails("list")
}
