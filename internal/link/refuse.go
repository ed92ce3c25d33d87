package link

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

// acceptPatience is how long a process without descriptors lets its clients wait before it turns
// them away. A shortage that passes sooner costs no call.
const acceptPatience = 2 * time.Second

// Refusing is RetryAccept for a process whose clients must not wait for ever. It keeps one file
// descriptor in reserve. When the process has had no free descriptor for longer than
// acceptPatience, it accepts each connection with the reserve. It gives the connection to
// refuse, which says so to the client, closes it, and does not take long.
func Refusing(l net.Listener, refuse func(net.Conn)) net.Listener {
	s := &retryListener{Listener: l, closed: make(chan struct{}), refuse: refuse}
	_ = s.fill()
	return s
}

// fill has a descriptor in reserve again.
func (s *retryListener) fill() error {
	if s.reserve != nil || s.refuse == nil {
		return nil
	}
	f, err := os.Open(os.DevNull)
	if err == nil {
		s.reserve = f
	}
	return err
}

// spill lets go of the reserve.
func (s *retryListener) spill() {
	if s.reserve != nil {
		_ = s.reserve.Close()
		s.reserve = nil
	}
}

// byReserve accepts a connection by the descriptor in reserve. It is an ordinary one if there are
// descriptors again by the time it has come; else it is refused, and nil.
func (s *retryListener) byReserve() net.Conn {
	if s.refuse == nil || s.fill() != nil {
		return nil
	}
	s.spill()
	c, err := s.Listener.Accept()
	if err != nil {
		return nil // the loop meets it again
	}
	if s.fill() == nil {
		return c
	}
	s.refuse(c)
	_ = s.fill()
	return nil
}

// exhausted reports whether process or host have no free descriptors.
func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}
