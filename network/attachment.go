package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
)

// Attachment is the wiring of one VM's NICs while a shim looks after it. Its methods
// may be called at the same time; each may be called again.
type Attachment struct {
	mu    sync.Mutex // held while s is used: Close and Down wait for what is under way
	shut  bool
	s     *session
	links []Link
	taps  []*os.File
	files map[string]*os.File // sinks, and taps opened after Open, by name
}

// Open takes an Attachment over from a shim that died. It changes nothing and opens
// no tap, because the VMM has them.
func Open(ctx context.Context, netnsPath string, links []Link) (*Attachment, error) {
	s, err := openSession(netnsPath)
	if err != nil {
		return nil, err
	}
	a := &Attachment{s: s, links: slices.Clone(links), files: map[string]*os.File{}}
	for _, l := range links {
		_, tap, err := s.pair(l)
		if err == nil {
			err = l.checkOwner(tap)
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			a.Close()
			return nil, fmt.Errorf("open network in %s: %w", netnsPath, err)
		}
	}
	return a, nil
}

// Links are those that Attach or Open was given.
func (a *Attachment) Links() []Link { return slices.Clone(a.links) }

// Taps are the open taps in the order of the links, for the VMM to inherit; none
// after Open. The Attachment closes them in Close, so the VMM needs its own copies.
func (a *Attachment) Taps() []*os.File { return slices.Clone(a.taps) }

// Tap is the open tap of the i-th link, for a NIC that is plugged in later. After Open it
// is opened here, which only works once the VMM has let go of it.
func (a *Attachment) Tap(i int) (*os.File, error) {
	if i < 0 || i >= len(a.links) {
		return nil, fmt.Errorf("open tap: link %d of %d: %w", i, len(a.links), errdefs.ErrInvalidArgument)
	}
	if i < len(a.taps) {
		return a.taps[i], nil
	}
	tap, err := a.open(a.links[i], a.links[i].Tap, tapFlags)
	if err != nil {
		return nil, fmt.Errorf("open tap %s: %w", a.links[i].Tap, err)
	}
	return tap, nil
}

// open answers the descriptor of the link's tap or sink, which the Attachment keeps.
func (a *Attachment) open(link Link, name string, flags uint16) (*os.File, error) {
	if err := a.lock(); err != nil {
		return nil, err
	}
	defer a.mu.Unlock()
	if f := a.files[name]; f != nil {
		return f, nil
	}
	tap, err := a.s.link(name)
	if err == nil {
		err = link.checkOwner(tap)
	}
	if err != nil {
		return nil, err
	}
	f, err := a.s.openTap(name, flags)
	if err != nil {
		return nil, err
	}
	a.files[name] = f
	return f, nil
}

// Up lets the VM talk: inside Run, or after an abort. Either every tap is up
// afterwards or none. Like: ip link set $tap up
func (a *Attachment) Up(ctx context.Context) error {
	err := a.each(ctx, "up", func(link Link, tap netlink.Link) error {
		iface, err := a.s.link(link.Interface)
		if err == nil {
			err = a.s.release(ctx, link, tap, iface) // which Mute takes away
		}
		if err != nil {
			return err
		}
		return a.s.nl.LinkSetUp(tap)
	})
	return a.allOrNone(ctx, err)
}

// Mute lets the VMM write frames, of which none goes further: for a guest that runs while
// it has addresses to give up. A VMM that meets a tap which is down may give up its NIC
// for good. What reaches a sink still does. Up ends it.
func (a *Attachment) Mute(ctx context.Context) error {
	err := a.each(ctx, "mute", func(_ Link, tap netlink.Link) error {
		if err := a.s.endRedirect(ctx, tap); err != nil {
			return err
		}
		return a.s.nl.LinkSetUp(tap)
	})
	return a.allOrNone(ctx, err)
}

func (a *Attachment) allOrNone(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	return errors.Join(err, a.Down(undo))
}

// Down silences the VM: at the vote, and before its VMM is stopped for good. Every
// tap is tried; one that is gone is as silent as one can be.
// Like: ip link set $tap down
func (a *Attachment) Down(ctx context.Context) error {
	return a.each(ctx, "down", func(_ Link, tap netlink.Link) error { return ignoreMissing(a.s.nl.LinkSetDown(tap)) })
}

// each does set to all taps and goes on after a failure, the more so for Down.
func (a *Attachment) each(ctx context.Context, name string, set func(Link, netlink.Link) error) (err error) {
	if err := a.lock(); err != nil {
		return err
	}
	defer a.mu.Unlock()
	for _, link := range a.links {
		e := a.s.step(ctx, "set "+name, link.Tap, func() error {
			l, err := a.s.link(link.Tap)
			if err == nil {
				err = link.checkOwner(l)
			}
			if errdefs.IsNotFound(err) && name == "down" {
				return nil
			} else if err != nil {
				return err
			}
			return set(link, l)
		})
		err = errors.Join(err, e)
	}
	return err
}

// lock locks a; the caller unlocks if there was no error.
func (a *Attachment) lock() error {
	a.mu.Lock()
	if a.shut {
		a.mu.Unlock()
		return fmt.Errorf("use closed network attachment: %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

// Close closes descriptors only: the wiring stays as it is, for a later Open.
func (a *Attachment) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.shut {
		return nil
	}
	a.shut = true
	a.s.close()
	return errors.Join(closeAll(a.taps), closeAll(slices.Collect(maps.Values(a.files))))
}

// Detach takes the wiring back, as the function of that name, and closes a.
func (a *Attachment) Detach(ctx context.Context) error {
	if err := a.lock(); err != nil {
		return err
	}
	err := a.s.lock(ctx)
	if err == nil {
		err = a.s.detach(ctx, a.links)
	}
	a.mu.Unlock()
	return errors.Join(err, a.Close())
}
