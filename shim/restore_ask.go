package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/internal/retry"
)

// question is one way to ask a restored guest.
type question struct {
	ask  func(context.Context) (*agentv1.RestoredResponse, error)
	hung bool // it is asked only if the one before it hangs: that it is refused says enough
}

// reply is what came of questions.
type reply struct {
	which  int // of them was answered
	answer *agentv1.RestoredResponse
	err    error
}

// firstAnswer asks until a question is answered. The next is asked once the one before it is refused, or has no answer
// in half of the time that is left. That one stays asked: a slow guest has all of the time for each.
func firstAnswer(ctx context.Context, questions ...question) reply {
	ask, rest := questions[0].ask, questions[1:]
	if len(rest) == 0 {
		answer, err := ask(ctx)
		return reply{0, answer, err}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first, answered := context.WithCancel(ctx)
	defer answered()
	less := make(chan reply, 1)
	hangs := time.AfterFunc(partOf(ctx), func() {
		r := firstAnswer(ctx, rest...)
		less <- r
		if r.err == nil {
			answered()
		}
	})
	answer, err := ask(first)
	waits := hangs.Stop()
	if err == nil || !refused(ctx, err) || waits && rest[0].hung {
		return reply{0, answer, err}
	}
	var r reply
	if waits {
		r = firstAnswer(ctx, rest...)
	} else {
		r = <-less
	}
	if r.which++; r.err != nil {
		r.err = fmt.Errorf("%w (asked for more: %s)", r.err, shown(err.Error()))
	}
	return r
}

// confirmBound is how long a guest that has said who it is has for the answer that says more.
const confirmBound = time.Second

// whoIs asks a guest who it is in which each Restored hangs, perhaps after all that counts. One of an earlier build
// answers none as long as a copy of files hangs, also one that began before it slept.
func whoIs(ctx context.Context, agent agentv1.AgentService) (*agentv1.RestoredResponse, error) {
	info, err := agent.Info(ctx, &agentv1.InfoRequest{})
	if err != nil {
		return nil, err
	}
	all, err := agent.Processes(ctx, &agentv1.ProcessesRequest{})
	if err != nil {
		return nil, err
	}
	retry.Sleep(ctx, confirmBound)
	return &agentv1.RestoredResponse{BootId: info.GetBootId(), UptimeMs: info.GetUptimeMs(),
		Processes: all.GetProcesses()}, nil
}

// errLate is why a Start ends that takes too long after its commit.
var errLate = errors.New("too late")

// abortable is ctx until the Start is late, or ends.
func abortable(ctx context.Context, s *starting) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.abort = func() { cancel(errLate) }
	return ctx, func() { cancel(nil) }
}

// sayLate says of a Start that was late what it waited for.
func sayLate(ctx context.Context, s *starting, err error) error {
	if !errors.Is(context.Cause(ctx), errLate) {
		return err
	}
	waited := "the guest did not answer"
	if s.woken.answer != nil {
		waited = "the wake did not end"
	}
	return fmt.Errorf("%s within %v (timeouts.boot): %w: %w", waited,
		time.Duration(s.vm.host.Config.Timeouts.Boot), context.DeadlineExceeded, err)
}

// partOf is half of the time that is left: the rest is for what else is to be done.
func partOf(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return time.Until(end) / 2
	}
	return guestBound
}
