package snapshot

import "context"

// trimming is a VM that goes on after its pause: nothing can be packed anew then, as it has
// changed by that time. It is done before the pause, with what is known so far.
type trimming struct {
	Live
	c *capture
}

// Prepare has packs given up before anything of the VM is made ready for its pause.
func (t trimming) Prepare(ctx context.Context) error {
	if err := t.c.trim(ctx); err != nil {
		return err
	}
	return t.Live.Prepare(ctx)
}

// trim packs anew while the VM runs. What it writes meanwhile the tracker tells of.
func (c *capture) trim(ctx context.Context) error {
	most := uint64(mostBeforePasses)
	if c.pre.Tracks() && c.pre.Passes() > 0 {
		most = mostRead
	}
	if c.drop(most) == 0 {
		return nil
	}
	return c.pre.Again(ctx)
}
