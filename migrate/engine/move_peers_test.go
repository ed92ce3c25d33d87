package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// sender is a node whose daemon restarts in the midst of its first Sends.
type sender struct {
	Peers
	nodev1.PeerService
	runs  time.Duration // of a Send
	fails int
	tries int
}

func (s *sender) Peer(string) (nodev1.PeerService, error) { return s, nil }

func (s *sender) Send(context.Context, *nodev1.PeerSendRequest) (*machinev1.SendResponse, error) {
	if s.tries++; s.tries <= s.fails {
		if s.tries == 1 {
			time.Sleep(s.runs)
		}
		return nil, &LinkError{Node: "a", Err: errdefs.ErrUnavailable}
	}
	return &machinev1.SendResponse{}, nil
}

// Patience with a node that does not answer counts from there on, however long the call had
// run: a daemon's restart costs no move. It ends where the node stays away.
func TestPatienceBeginsWithTheSilence(t *testing.T) {
	for name, tt := range map[string]struct {
		fails int
		away  bool
	}{"restarts": {fails: 1}, "stays away": {fails: 1 << 30, away: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &sender{runs: 3 * DefaultPatience / 2, fails: tt.fails}
				e := &core{Parts: Parts{Peers: s}, opts: Options{}.withDefaults()}
				begun := time.Now()
				_, err := ask(t.Context(), e, "a", nodev1.PeerService.Send, &nodev1.PeerSendRequest{})
				if errors.As(err, new(*LinkError)) != tt.away || !tt.away && err != nil {
					t.Errorf("after %d tries: %v", s.tries, err)
				}
				if took := time.Since(begun); tt.away && took > s.runs+DefaultPatience+time.Second {
					t.Errorf("it was asked for %v", took)
				}
			})
		})
	}
}
