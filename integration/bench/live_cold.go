package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// coldVM is a small Linux VM.
var coldVM = gapSizes[0]

// cold times a cold move by the guest's ticks and containerd's list.
func (b *liveBench) cold(ctx context.Context) error {
	if err := b.boot(ctx, coldVM, "auto"); err != nil {
		return err
	}
	b.ports.Forget()
	begun := time.Now()
	order, err := b.moves(ctx, "migrate", liveVM, "--to", b.there.Name, "--mode", "cold", "--detach")
	if err != nil {
		return err
	}
	accepted := time.Since(begun)
	err = harness.Poll(ctx, stepTimeout, func(ctx context.Context) error {
		out, err := b.there.RunCtr(ctx, "task", "ls")
		if err == nil && !strings.Contains(out, liveVM+" ") {
			err = fmt.Errorf("no task at the destination: %s", out)
		}
		return err
	})
	if err != nil {
		return err
	}
	placed := time.Since(begun)
	if err := b.arrived(ctx, 1); err != nil {
		return err
	}
	c, err := b.ports.Cross(0, 1)
	if err == nil && c.Twice+c.Late > 0 {
		err = fmt.Errorf("the guest was seen twice: %+v", c)
	}
	if err == nil {
		_, err = b.node.RunGodwit(ctx, "watch", order.Operation.ID) // to its end
	}
	if err != nil {
		return err
	}
	b.note("cold_accepted_ms", ms(accepted))
	b.note("cold_frozen_ms", ms(c.Last.At.Sub(begun)))
	b.note("cold_placed_ms", ms(placed))
	b.note("cold_ready_ms", ms(c.First.At.Sub(begun)))
	return b.end(ctx)
}
