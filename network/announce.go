package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/spec"
)

// announceAt are the moments after Run. The first frame may meet a port that is not
// forwarding yet; more than these would look like a flapping MAC to an EVPN fabric.
var announceAt = []time.Duration{0, 50 * time.Millisecond, 150 * time.Millisecond, 350 * time.Millisecond}

// Announce tells the network where the VM is now: one RARP for each NIC, two
// gratuitous ARP for each IPv4 address, one unsolicited neighbour advertisement for
// each IPv6 address, four times in 350 ms. It stops with an error when a tap goes
// down, because then the VM may be running elsewhere.
func (a *Attachment) Announce(ctx context.Context) error {
	if len(a.links) == 0 {
		return nil
	}
	start := time.Now()
	for _, at := range announceAt {
		timer := time.NewTimer(time.Until(start.Add(at)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("announce VM: %w", ctx.Err())
		case <-timer.C:
		}
		var errs error
		for _, l := range a.links {
			errs = errors.Join(errs, a.announce(l))
		}
		if errs != nil {
			return fmt.Errorf("announce VM: %w", errs)
		}
	}
	return nil
}

func (a *Attachment) announce(link Link) error {
	frames, err := announcements(link.NIC)
	if err != nil {
		return err
	}
	// One lock round both: after Down has returned nothing more is sent.
	if err := a.lock(); err != nil {
		return err
	}
	defer a.mu.Unlock()
	tap, err := a.s.link(link.Tap)
	if err != nil {
		return err
	}
	if tap.Attrs().RawFlags&unix.IFF_UP == 0 {
		return fmt.Errorf("tap %s is down: %w", link.Tap, errdefs.ErrFailedPrecondition)
	}
	iface, err := a.s.link(link.Interface)
	if err != nil {
		return err
	}
	return within(a.s.ns, func() error { return send(iface.Attrs().Index, frames) })
}

func announcements(nic spec.NIC) ([][]byte, error) {
	mac, err := net.ParseMAC(nic.MAC)
	if err != nil || len(mac) != 6 {
		return nil, fmt.Errorf("parse MAC %q of %s: six bytes wanted", nic.MAC, nic.ID)
	}
	frames := [][]byte{rarp(mac)}
	for _, p := range nic.Addresses {
		ip := p.Addr().Unmap()
		if ip.Is4() {
			frames = append(frames, gratuitousARP(arpRequest, mac, ip), gratuitousARP(arpReply, mac, ip))
		} else {
			frames = append(frames, neighborAdvertisement(mac, ip))
		}
	}
	return frames, nil
}

// send puts frames on the wire that an interface of this thread's namespace leads to.
func send(index int, frames [][]byte) (err error) {
	// Protocol 0: this socket never receives.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	defer unix.Close(fd)
	for _, f := range frames {
		to := &unix.SockaddrLinklayer{Ifindex: index, Halen: 6,
			Protocol: binary.NativeEndian.Uint16(f[12:14])} // network order, as it is in f
		copy(to.Addr[:], f[:6])
		if e := unix.Sendto(fd, f, unix.MSG_DONTWAIT, to); e != nil {
			err = errors.Join(err, fmt.Errorf("send announcement: %w", e))
		}
	}
	return err
}
