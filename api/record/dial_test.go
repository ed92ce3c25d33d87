package record

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Calls that come while a connection is made wait for that one, also where the call that began
// it is called off. Where none is made each call hears that.
func TestCallsShareADial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials, refuse := 0, make(chan struct{})
		c := newClient("there", func(ctx context.Context, _ int) (net.Conn, error) {
			dials++
			select {
			case <-refuse:
				return nil, net.ErrClosed
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		first, cancel := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		call := func(ctx context.Context) {
			calls.Go(func() {
				if _, err := c.List(ctx, &nodev1.ListRequest{}); !errdefs.IsUnavailable(err) {
					t.Errorf("list: %v", err)
				}
			})
			synctest.Wait()
		}
		call(first)
		for range 9 {
			call(t.Context())
		}
		cancel()
		synctest.Wait()
		if dials != 1 {
			t.Errorf("%d connections are being made for ten calls", dials)
		}
		close(refuse)
		calls.Wait()
		_ = c.Close()
	})
}
