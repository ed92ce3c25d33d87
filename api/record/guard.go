package record

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Guard bounds how long a godwitd may be silent under a call. A call may take long. Each time it has
// been unanswered for Silence, godwitd is asked whether it is there. If that is not answered within
// Answer, the call ends Unavailable. A daemon without free file descriptors leaves its clients in the
// queue of its socket; one that is stopped or hangs answers no call.
type Guard struct{ Silence, Answer time.Duration }

// DefaultGuard is for a person who waits.
var DefaultGuard = Guard{Silence: 5 * time.Second, Answer: 10 * time.Second}

// present is a method that no godwitd has: a server of any build says
// so (Unimplemented) at once, and does nothing for it.
const presentService, presentMethod = "godwit.node.v1.Node", "Present"

// Client makes a client on a connection to the godwitd at address.
func (g Guard) Client(conn net.Conn, address string) *ttrpc.Client {
	var client *ttrpc.Client
	guarded := func(ctx context.Context, req *ttrpc.Request, resp *ttrpc.Response, _ *ttrpc.UnaryClientInfo,
		invoke ttrpc.Invoker) error {
		if req.GetMethod() == presentMethod {
			return invoke(ctx, req, resp)
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		go g.watch(ctx, cancel, client, address)
		err := invoke(ctx, req, resp)
		if _, answered := status.FromError(err); answered {
			return err
		}
		if silent, ok := errors.AsType[*silentError](context.Cause(ctx)); ok {
			return silent
		}
		return err
	}
	client = ttrpc.NewClient(conn, ttrpc.WithUnaryClientInterceptor(guarded))
	return client
}

// watch ends the call of that context once godwitd is silent.
func (g Guard) watch(ctx context.Context, end context.CancelCauseFunc, client *ttrpc.Client, address string) {
	tick := time.NewTicker(g.Silence)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		bound, cancel := context.WithTimeout(ctx, g.Answer)
		err := client.Call(bound, presentService, presentMethod, &emptypb.Empty{}, &emptypb.Empty{})
		cancel()
		if _, answered := status.FromError(err); answered {
			continue
		}
		end(&silentError{address, g.Answer}) // or the connection is closed, or the call is over: it knows first
		return
	}
}

// silentError is of a godwitd whose socket takes connections, and that answers no call.
type silentError struct {
	address string
	after   time.Duration
}

func (e *silentError) Error() string {
	return fmt.Sprintf("godwitd at %s has been silent for %s. It hangs, is stopped, or has no free file "+
		"descriptors (LimitNOFILE). "+
		"To see its log: journalctl -u godwitd. To start it again, while its VMs run on: systemctl restart godwitd: %s",
		e.address, e.after, errdefs.ErrUnavailable)
}

// Unwrap gives the class.
func (*silentError) Unwrap() error { return errdefs.ErrUnavailable }
