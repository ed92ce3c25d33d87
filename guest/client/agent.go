package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/session"
	"godwit.dev/godwit/internal/turn"
	"godwit.dev/godwit/internal/visible"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Options of Connect. The zero value is usable.
type Options struct {
	// Dial opens the agent's channel; nil: connect to the unix socket. VSock returns
	// one for Cloud Hypervisor's hybrid vsock.
	Dial func(ctx context.Context, path string) (net.Conn, error)
	// BootTimeout bounds the wait for the first answer; 0: 60s.
	BootTimeout time.Duration
	// Console is the path of the VM's console log; a BootError shows its end.
	Console string
	// Gone is closed when the VM has ended for good; calls then fail with Unavailable.
	// Nil for a VM that is going to Move.
	Gone <-chan struct{}
	Log  *slog.Logger // nil: slog.Default
	// First is the first call; nil: Info. A guest whose first call is Prepare is there to be
	// copied, and one that is a copy has to hear Restored before anything else.
	First func(ctx context.Context, a *Agent) error
}

// Agent is a connection to godwit-init. Its calls survive the loss of the channel and,
// because every request is idempotent, of the session: they are issued again until
// ctx ends. Errors have errdefs classes. Agent implements agentv1.AgentService.
type Agent struct {
	opts Options
	life context.Context
	stop context.CancelFunc

	opening turn.Turn // of who opens a channel, or holds it

	mu   sync.Mutex
	path string
	// channels are open, the newest last. One of a session that was dropped stays for a moment.
	channels []*channel
	// held is closed by Release; nil: nothing is held. closing is what is closed then.
	held        chan struct{}
	closing     []net.Conn
	holds       bool               // somebody waits in Hold
	stopDialing context.CancelFunc // nil: no channel was opened yet

	current *peer // nil before the first call and after a loss
	lanes   bool  // the guest has them; set by Connect
}

// peer is one session and the client on it.
type peer struct {
	conn   *session.Conn
	guard  *guard
	client *ttrpc.Client

	mu    sync.Mutex
	lanes map[stream]*session.Lane
}

var _ agentv1.AgentService = (*Agent)(nil)

// bootTimeout of who sets none.
const bootTimeout = time.Minute

// Connect returns once the agent has answered. On failure it returns a *BootError, or ctx's
// error, and nothing of it is left.
func Connect(ctx context.Context, socket string, opts Options) (*Agent, error) {
	if opts.Dial == nil {
		opts.Dial = dialUnix
	}
	if opts.BootTimeout == 0 {
		opts.BootTimeout = bootTimeout
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	if opts.First == nil {
		opts.First = func(ctx context.Context, a *Agent) error {
			_, err := a.Info(ctx, &agentv1.InfoRequest{})
			return err
		}
	}
	a := &Agent{opts: opts, path: socket, opening: turn.New()}
	a.life, a.stop = context.WithCancel(context.WithoutCancel(ctx))
	if opts.Gone != nil {
		go func() {
			select {
			case <-opts.Gone:
				a.Close()
			case <-a.life.Done():
			}
		}()
	}
	boot, cancel := context.WithTimeout(ctx, opts.BootTimeout)
	defer cancel()
	boot, give := context.WithCancelCause(boot)
	defer give(nil)
	if opts.Console != "" {
		go watchPanic(boot, opts.Console, give)
	}
	if err := opts.First(boot, a); err != nil {
		a.Close()
		if errors.Is(context.Cause(boot), errPanicked) {
			err = errPanicked
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("connect agent %s: %w", socket, context.Cause(ctx))
		}
		return nil, newBootError(opts, err)
	}
	if p, err := a.session(); err == nil {
		a.lanes = p.conn.Lanes()
	}
	return a, nil
}

// Move makes the agent go on over another socket, of the VM's next incarnation.
func (a *Agent) Move(socket string) {
	a.mu.Lock()
	a.path = socket
	all := slices.Clone(a.channels)
	a.mu.Unlock()
	for _, ch := range all {
		ch.Close()
	}
}

// Close ends the connection; calls in flight fail with ErrUnavailable. It may be
// called more than once.
func (a *Agent) Close() error {
	a.stop()
	a.Release()
	a.mu.Lock()
	p := a.current
	a.current = nil
	a.mu.Unlock()
	if p != nil {
		p.client.Close()
	}
	return nil
}

// dial opens the channel of a session, when none is held.
func (a *Agent) dial(ctx context.Context) (io.ReadWriteCloser, error) {
	if err := a.opening.Take(ctx); err != nil {
		return nil, err
	}
	defer a.opening.Give()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.mu.Lock()
	path, holds := a.path, a.holds
	a.stopDialing = cancel
	a.mu.Unlock()
	if holds {
		return nil, errHeld
	}
	conn, err := a.opts.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	ch := a.newChannel(conn)
	a.mu.Lock()
	a.channels = append(a.channels, ch)
	moved := a.path != path
	a.mu.Unlock()
	if moved {
		ch.Close()
	}
	return ch, nil
}

// session returns the current session, a new one if there is none.
func (a *Agent) session() (*peer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.life.Err() != nil {
		return nil, errGone
	}
	if a.current == nil {
		conn := session.Dial(a.dial)
		g := newGuard(conn)
		a.current = &peer{conn: conn, guard: g, client: ttrpc.NewClient(g)}
	}
	return a.current, nil
}

// drop forgets a session that has ended.
func (a *Agent) drop(p *peer) {
	a.mu.Lock()
	if a.current == p {
		a.current = nil
	}
	a.mu.Unlock()
	p.client.Close()
}

// A call waits before it asks in a new session: a guest that refuses every one at once
// must not make the host spin.
const (
	againMin = 20 * time.Millisecond
	againMax = time.Second
)

// maxErrorText is what is kept of a guest's error: it comes into logs and answers of the host.
const maxErrorText = 1 << 10

// native gives an error of the wire its class; one of our own has it, and would lose it.
func native(err error) error {
	if !errdefs.IsUnknown(errdefs.Resolve(err)) {
		return err
	}
	if s := status.Convert(err); proto.Size(s.Proto()) > maxErrorText {
		err = status.Error(s.Code(), visible.Cut(s.Message(), maxErrorText)) // without details, which have texts too
	}
	return errgrpc.ToNative(err)
}

// call issues one request until it is answered, or answered with nonsense.
func call[Q, R any](ctx context.Context, a *Agent, do func(agentv1.AgentService, context.Context, *Q) (*R, error),
	req *Q) (*R, error) {
	return again(ctx, a, func(p *peer) (*R, error) { return do(agentv1.NewAgentClient(p.client), ctx, req) })
}

// lost reports whether a call ended because its session did, perhaps in the midst of an answer,
// which ttrpc tells as the io package does.
func (p *peer) lost(err error) bool {
	return errors.Is(err, ttrpc.ErrClosed) || errors.Is(err, session.ErrReset) || errors.Is(err, io.ErrUnexpectedEOF) &&
		p.conn.Err() != nil
}

// again does what needs a session until one lasts for it.
func again[R any](ctx context.Context, a *Agent, do func(*peer) (*R, error)) (*R, error) {
	for wait := againMin; ; wait = min(2*wait, againMax) {
		p, err := a.session()
		if err != nil {
			return nil, err
		}
		resp, err := do(p)
		if err == nil {
			return resp, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		full := errors.Is(p.guard.cause(), errFull)
		if e := p.guard.cause(); e != nil && !full { // not asked again: it would be no better
			a.drop(p)
			return nil, e
		}
		if !full && !p.lost(err) {
			return nil, native(err)
		}
		a.drop(p)
		if end := p.conn.Err(); errdefs.IsFailedPrecondition(end) {
			return nil, end // another protocol: a new session would end the same way
		}
		a.opts.Log.InfoContext(ctx, "agent session lost", "err", err)
		select {
		case <-time.After(wait):
		case <-a.life.Done():
			return nil, errGone
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
