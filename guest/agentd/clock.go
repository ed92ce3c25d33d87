package agentd

import (
	"context"
	"fmt"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// clockStep is how late a clock may be and is left alone: less than it is what a call takes on
// its way, and every step makes some program's interval wrong.
const clockStep = 10 * time.Millisecond

// SetClock implements agentv1.AgentService. The host's word is old when it comes here, in a
// guest that was paused on the way by any time: so it is what the clock shows at least.
func (s *Service) SetClock(_ context.Context, r *agentv1.SetClockRequest) (*agentv1.SetClockResponse, error) {
	if r.UnixNano <= 0 {
		return nil, fmt.Errorf("set clock to %d ns: %w", r.UnixNano, errdefs.ErrInvalidArgument)
	}
	s.clockMu.Lock() // of two words at once, one of them perhaps of Restored, the older must not win
	defer s.clockMu.Unlock()
	late := r.UnixNano - s.clock.now()
	if late < int64(clockStep) {
		return &agentv1.SetClockResponse{}, nil
	}
	if err := s.clock.set(r.UnixNano); err != nil {
		return nil, fmt.Errorf("set clock: %w", err)
	}
	return &agentv1.SetClockResponse{BehindNano: late}, nil
}

// noteWake sets the clock of a guest that was restored to the host's time, also back: the time of
// its snapshot may be of another host. A call that is repeated, because its answer was lost,
// has an old time and changes nothing.
func (s *Service) noteWake(at int64) error {
	s.clockMu.Lock()
	defer s.clockMu.Unlock()
	if at <= 0 || at == s.awakeAt {
		return nil
	}
	if err := s.clock.set(at); err != nil {
		return fmt.Errorf("set clock: %w", err)
	}
	s.awakeAt = at
	return nil
}

// wallClock is the guest's, in nanoseconds since 1970.
type wallClock interface {
	now() int64
	set(int64) error
}

// realtime is the kernel's.
type realtime struct{}

func (realtime) now() int64 { return time.Now().UnixNano() }

func (realtime) set(at int64) error {
	ts := unix.NsecToTimespec(at)
	return unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
}
