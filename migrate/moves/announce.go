package moves

import (
	"context"
	"log/slog"
	"time"

	"godwit.dev/godwit/migrate/cluster"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// minAnnounce is the least that is between two signs of life, whatever the controller asks for.
const minAnnounce = time.Second

// Announcer is the controller as a node tells it that it lives.
type Announcer interface {
	Announce(ctx context.Context, req *nodev1.AnnounceRequest) (*nodev1.AnnounceResponse, error)
}

// Speaker is what a node says of itself.
type Speaker interface {
	Self() *nodev1.NodeInfo
	// Untold are the events that the controller has not heard of yet, oldest first; Told forgets
	// the first n of them.
	Untold() []*nodev1.MoveEvent
	Told(n int)
	// Heard takes the controller's answer.
	Heard(ctx context.Context, resp *nodev1.AnnounceResponse) error
}

// Live tells the controller that a node lives, for as long as it does.
func Live(ctx context.Context, to Announcer, node Speaker) {
	said := ""
	for ctx.Err() == nil {
		own := node.Untold()
		resp, err := to.Announce(ctx, &nodev1.AnnounceRequest{Node: node.Self(), Events: own})
		pause := cluster.Interval
		if err == nil || Refused(err) { // of what is refused once, the log has it
			node.Told(len(own))
		}
		if err == nil {
			pause = max(minAnnounce, time.Duration(resp.GetAgainMs())*time.Millisecond)
			err = node.Heard(ctx, resp)
		}
		text := ""
		switch {
		case err == nil:
		case ctx.Err() == nil && said != err.Error():
			slog.WarnContext(ctx, "controller does not hear of this node", "error", err)
			fallthrough
		default:
			text = err.Error()
		}
		said = text
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}
