package moves

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// An operation is looked at until it is settled, also over a daemon that is away. A daemon that refuses, or a caller
// that has enough, ends it with that error. What is settled already is not asked about.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := func(settled bool) *nodev1.StatusResponse {
			return &nodev1.StatusResponse{Operation: &nodev1.Operation{Id: "op"}, Settled: settled}
		}
		var answers []any // one after the other: a response, or an error
		ask := func(_ context.Context, req *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
			if req.GetOperation() != "op" {
				t.Errorf("it asks for %q", req.GetOperation())
			}
			next := answers[0]
			answers = answers[1:]
			if err, failed := next.(error); failed {
				return nil, err
			}
			return next.(*nodev1.StatusResponse), nil
		}
		told := 0
		tell := func(*nodev1.StatusResponse) { told++ }
		p := &Patience{Met: true}

		answers = []any{at(false), errdefs.ErrUnavailable, at(false), at(true)}
		begun := time.Now()
		status, err := p.Settle(t.Context(), at(false), ask, tell)
		if err != nil || !status.GetSettled() || told != 3 || time.Since(begun) != 3*SettleInterval+awayPause {
			t.Errorf("settled %v after %v, told %d times: %v", status, time.Since(begun), told, err)
		}
		if status, err = p.Settle(t.Context(), at(true), nil, nil); err != nil || !status.GetSettled() {
			t.Errorf("settled already: %v, %v", status, err)
		}
		answers = []any{errdefs.ErrNotFound}
		if _, err = p.Settle(t.Context(), at(false), ask, nil); !errdefs.IsNotFound(err) {
			t.Errorf("a refusal: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		answers = []any{at(false)}
		if _, err = p.Settle(ctx, at(false), ask, func(*nodev1.StatusResponse) { cancel() }); !errors.Is(err,
			context.Canceled) {
			t.Errorf("a caller that has enough: %v", err)
		}
	})
}
