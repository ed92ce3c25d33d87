package moves

import (
	"context"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// SettleInterval is the pause between two looks at an operation. A local call costs well under a millisecond.
const SettleInterval = 50 * time.Millisecond

// Settle looks at an operation until it is settled, by calls of ask. tell hears how far it is before each look; nil:
// it is not told. While the daemon is away, Settle waits as Ask does. When ctx ends the operation goes on.
func (p *Patience) Settle(ctx context.Context, status *nodev1.StatusResponse,
	ask func(context.Context, *nodev1.StatusRequest) (*nodev1.StatusResponse, error),
	tell func(*nodev1.StatusResponse)) (*nodev1.StatusResponse, error) {
	request := &nodev1.StatusRequest{Operation: status.GetOperation().GetId()}
	for !status.GetSettled() {
		if tell != nil {
			tell(status)
		}
		select {
		case <-ctx.Done():
		case <-time.After(SettleInterval):
		}
		err := p.Ask(ctx, func(ctx context.Context) (err error) {
			status, err = ask(ctx, request)
			return record.FromWire(err)
		})
		if err != nil {
			return nil, err
		}
	}
	return status, nil
}
