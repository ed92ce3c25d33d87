package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// netlinkTimeout bounds one exchange with the kernel.
const netlinkTimeout = 10 * time.Second

// session is one namespace and the netlink socket opened in it.
type session struct {
	ns   *os.File
	nl   *netlink.Handle
	fail func(step string) error // tests: asked before every change; nil otherwise
}

func openSession(path string) (*session, error) {
	ns, err := openNamespace(path)
	if err != nil {
		return nil, err
	}
	s := &session{ns: ns}
	err = within(ns, func() (err error) {
		s.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err == nil {
		err = s.nl.SetSocketTimeout(netlinkTimeout)
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("open netlink in %s: %w", path, err)
	}
	return s, nil
}

func (s *session) close() {
	s.unlock() // a program that is about to be started may have the descriptor for a moment
	if s.nl != nil {
		s.nl.Close()
	}
	s.ns.Close()
}

// step makes one change of the namespace.
func (s *session) step(ctx context.Context, name, object string, change func() error) error {
	err := ctx.Err()
	if err == nil && s.fail != nil {
		err = s.fail(name + " " + object)
	}
	if err == nil {
		err = change()
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", name, object, err)
	}
	return nil
}

// link finds an interface by name; ErrNotFound where there is none.
func (s *session) link(name string) (netlink.Link, error) {
	l, err := s.nl.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, fmt.Errorf("find interface %s: %w", name, errdefs.ErrNotFound)
	} else if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", name, err)
	}
	return l, nil
}

// dump repeats a list that changed while the kernel wrote it.
func dump[T any](list func() ([]T, error)) ([]T, error) {
	for range 10 {
		all, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return nil, fmt.Errorf("list kept changing: %w", errdefs.ErrUnavailable)
}

// ignoreMissing turns what the kernel says of a missing object into success.
func ignoreMissing(err error) error {
	for _, e := range []error{unix.ENODEV, unix.ENOENT, unix.ESRCH, unix.EADDRNOTAVAIL, unix.ENXIO} {
		if errors.Is(err, e) {
			return nil
		}
	}
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}
