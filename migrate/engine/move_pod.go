package engine

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// chooseMode decides what auto comes to. A pod would stand still in a cold move until its containers are made there.
func (e *Engine) chooseMode(ctx context.Context, rec *nodev1.Record, offer *machinev1.OfferResponse) (string, error) {
	op := rec.GetOperation()
	why := "a pod moves live alone, since it would stand still until its containers are made there"
	if op.GetMode() != moves.ModeCold {
		var err error
		if why, err = e.unfit(ctx, rec, offer, true); err != nil || why == "" {
			return moves.ModeLive, err
		}
	}
	switch {
	case len(offer.GetResume()) > 0: // a pod
		return "", fmt.Errorf("move VM %s: %s. To move it asleep: godwit hibernate, and wake it on node %s: %w",
			name(op.GetVm()), why, op.GetDestination(), errdefs.ErrFailedPrecondition)
	case op.GetMode() == moves.ModeLive:
		return "", fmt.Errorf("move VM %s live: %s: %w", name(op.GetVm()), why, errdefs.ErrFailedPrecondition)
	}
	return moves.ModeCold, nil
}

// waitsFor is what a pod waits for before it is sent: its destination first, which answers in missing. An exec is the
// probe of a container, and ends by itself. If it is ended by order, Send sees to that.
func waitsFor(op *nodev1.Operation, offer *machinev1.OfferResponse, missing string) error {
	switch {
	case missing != "":
		return &waitError{missing}
	case offer.GetWaits() != "" && !op.GetEndExecs():
		return &waitError{offer.GetWaits()}
	}
	return nil
}
