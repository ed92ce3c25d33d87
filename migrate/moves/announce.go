package moves

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"godwit.dev/godwit/migrate/cluster"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// minAnnounce is the least that is between two heartbeats, whatever the controller asks for. After
// a failure it is about that long until the next try, twice as long after the next one, and so on.
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
	// Heard takes the controller's answer, and may be long about it.
	Heard(ctx context.Context, resp *nodev1.AnnounceResponse) error
}

// Live tells the controller that a node lives, for as long as it does. No heartbeat waits for what
// the node does about an answer: of the answers that come meanwhile it hears the newest.
func Live(ctx context.Context, to Announcer, node Speaker) {
	answers := make(chan *nodev1.AnnounceResponse, 1)
	var hearing sync.WaitGroup
	hearing.Go(func() { hear(ctx, node, answers) })
	defer hearing.Wait()
	said, wait := "", minAnnounce
	for ctx.Err() == nil {
		own := node.Untold()
		resp, err := to.Announce(ctx, &nodev1.AnnounceRequest{Node: node.Self(), Events: own})
		pause := wait/2 + rand.N(wait)
		wait = min(2*wait, cluster.Interval)
		if err == nil || Refused(err) { // of what is refused once, the log has it
			node.Told(len(own))
		}
		if err == nil {
			pause, wait = max(minAnnounce, time.Duration(resp.GetAgainMs())*time.Millisecond), minAnnounce
			select {
			case <-answers: // an older one
			default:
			}
			answers <- resp
		} else if said != err.Error() && ctx.Err() == nil {
			slog.WarnContext(ctx, "controller does not hear of this node", "error", err)
		}
		said = text(err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// hear has the node act on answers, one after the other.
func hear(ctx context.Context, node Speaker, answers <-chan *nodev1.AnnounceResponse) {
	said := ""
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case resp := <-answers:
			err := node.Heard(ctx, resp)
			if err != nil && said != err.Error() && ctx.Err() == nil {
				slog.WarnContext(ctx, "controller's answer waits", "error", err)
			}
			said = text(err)
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
