package snapshot

import (
	"context"
	"time"
)

// trimming is a VM that goes on behind its pause: nothing can be packed anew then, as it has
// changed by that time. It is done ahead of the pause, with what is known so far.
type trimming struct {
	Live
	c *capture
}

// Prepare has packs given up before anything of the VM is made ready for its pause.
func (t trimming) Prepare(ctx context.Context) error {
	if err := t.c.trim(); err != nil {
		return err
	}
	return t.Live.Prepare(ctx)
}

// trim packs anew while the VM runs. What it writes meanwhile the tracker tells of.
func (c *capture) trim() error {
	most := uint64(mostAhead)
	if c.between() && len(c.made) > 0 {
		most = mostRead
	}
	if c.drop(most) == 0 {
		return nil
	}
	begun := time.Now()
	done, err := c.pass(pass{})
	if err != nil {
		return err
	}
	c.noted(done, time.Since(begun))
	return c.packer.drain()
}
