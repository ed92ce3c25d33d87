package agentd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/internal/turn"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ConfigureNetwork implements agentv1.AgentService.
func (s *Service) ConfigureNetwork(ctx context.Context,
	r *agentv1.ConfigureNetworkRequest) (*agentv1.ConfigureNetworkResponse, error) {
	return &agentv1.ConfigureNetworkResponse{}, s.configure(ctx, r.Nics)
}

// loopbackUp brings lo up. An ioctl does it with a fraction of netlink's code, which most
// containers' starts need for nothing else.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	return nil
}

// nicSetup is how NICs come to what the host says.
type nicSetup struct {
	turn  turn.Turn
	wakes atomic.Uint64 // of the guest
	// Others in tests.
	find func(mac string) (netlink.Link, error)
	set  func(*agentv1.NIC, netlink.Link) error
}

func newNICSetup() nicSetup { return nicSetup{turn: turn.New(), find: findNIC, set: configureNIC} }

// since says that the guest has slept since a call of the host: what it says is of another node.
func (s *nicSetup) since(wakes uint64) error {
	if s.wakes.Load() != wakes {
		return fmt.Errorf("the guest has slept since: %w", errdefs.ErrAborted)
	}
	return nil
}

// configure does what the calls of the host say, one after the other. The workload may be in the way of one NIC: each
// step that goes is done, for each NIC, and the error says what does not go.
func (s *Service) configure(ctx context.Context, nics []*agentv1.NIC) error {
	if len(nics) == 0 {
		return nil
	}
	wakes := s.network.wakes.Load()
	if err := s.network.turn.Take(ctx); err != nil {
		return fmt.Errorf("configure NICs: %w", err)
	}
	defer s.network.turn.Give()
	if err := s.opts.Network(); err != nil {
		return err
	}
	all := make([]*nicWork, len(nics))
	for i, n := range nics {
		all[i] = &nicWork{NIC: n}
	}
	each := func(step func(*nicWork)) error {
		for _, w := range all {
			if err := s.network.since(wakes); err != nil {
				return fmt.Errorf("configure NIC %s: %w", w.Mac, err)
			}
			step(w)
		}
		return nil
	}
	find := func(w *nicWork) {
		link, err := s.nic(ctx, w.Mac, wakes)
		if w.failed(err); err == nil {
			w.link = link
		}
	}
	if err := each(find); err != nil {
		return err
	}
	lookAtNames(all)
	var problems []error
	set := func(w *nicWork) {
		if w.link != nil {
			w.failed(s.network.set(w.NIC, w.link))
		}
		problems = append(problems, w.problems...)
	}
	for _, step := range []func(*nicWork){freeName, rename, set} {
		if err := each(step); err != nil {
			return err
		}
	}
	return errors.Join(problems...)
}

func configureNIC(n *agentv1.NIC, link netlink.Link) error {
	var problems []error
	if n.Mtu != 0 {
		if err := netlink.LinkSetMTU(link, int(n.Mtu)); err != nil {
			problems = append(problems, fmt.Errorf("set mtu %d: %w", n.Mtu, err))
		}
	}
	// The addresses are the host's to decide, IPv6's too.
	conf := "/proc/sys/net/ipv6/conf/" + link.Attrs().Name
	for name, value := range map[string]string{"accept_ra": "0", "accept_dad": "0"} {
		if err := os.WriteFile(conf+"/"+name, []byte(value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			problems = append(problems, fmt.Errorf("set %s: %w", name, err))
		}
	}
	return errors.Join(append(problems, setUp(n, link))...)
}

// setUp gives a NIC its addresses and routes.
func setUp(n *agentv1.NIC, link netlink.Link) error {
	if err := setAddresses(link, n.Addresses); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up: %w", err)
	}
	return setRoutes(link, n.Routes)
}

// nic is findNIC, which waits in a copy: its NICs may have been plugged in after it was restored.
func (s *Service) nic(ctx context.Context, mac string, wakes uint64) (link netlink.Link, err error) {
	if !s.held {
		return s.network.find(mac)
	}
	err = awaitPlugged(ctx, func() (missing, failed error) {
		if err := s.network.since(wakes); err != nil {
			return nil, err
		}
		if link, missing = s.network.find(mac); missing != nil && !errdefs.IsNotFound(missing) {
			return nil, missing
		}
		return missing, nil
	})
	return link, err
}

func findNIC(mac string) (netlink.Link, error) {
	want, err := net.ParseMAC(mac)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	links, err := whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if l.Attrs().HardwareAddr.String() == want.String() {
			return l, nil
		}
	}
	return nil, fmt.Errorf("no such link: %w", errdefs.ErrNotFound)
}

// dumps is how often a list is asked for, with a pause between.
const (
	dumps     = 1000
	dumpPause = time.Millisecond
)

// whole repeats a list that changed while the kernel wrote it: an address that is not
// tentative any more, a route that comes with a link, end a dump at any time.
func whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range dumps {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
		time.Sleep(dumpPause)
	}
	return nil, fmt.Errorf("the list kept changing: %w: %w", err, errdefs.ErrUnavailable)
}

// setAddresses replaces what is there. An address that stays is not touched: its
// connections live on.
func setAddresses(link netlink.Link, cidrs []string) error {
	want := make(map[string]*netlink.Addr)
	for _, c := range cidrs {
		a, err := netlink.ParseAddr(c)
		if err != nil {
			return fmt.Errorf("address %q: %w: %w", c, err, errdefs.ErrInvalidArgument)
		}
		want[a.IPNet.String()] = a
	}
	have, err := whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range have {
		if want[a.IPNet.String()] != nil || a.IP.IsLinkLocalUnicast() {
			continue
		}
		// A call that was repeated after a session broke may meet itself: what has gone is as it should be.
		if err := netlink.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address %s: %w", a.IPNet, err)
		}
	}
	for _, c := range cidrs { // in order: the first is the source of new connections
		a, _ := netlink.ParseAddr(c)
		if a.IP.To4() == nil {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrReplace(link, a); err != nil {
			return fmt.Errorf("add address %s: %w", c, err)
		}
	}
	return nil
}
