package network

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// Orphans deletes the taps of owners that known denies, and the redirects that lead
// to them, and gives the owners it found (N-26). The addresses come back only with
// Detach: nobody else knows them.
func Orphans(ctx context.Context, netnsPath string, known func(Owner) bool) (removed []Owner, err error) {
	s, err := openSession(netnsPath)
	if err != nil {
		return nil, err
	}
	defer s.close()
	all, err := dump(s.nl.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces of %s: %w", netnsPath, err)
	}
	for _, l := range all {
		owner, ours := parseAlias(l.Attrs().Alias)
		if l.Type() != "tuntap" || !ours || known(owner) {
			continue
		}
		name := l.Attrs().Name
		e := s.step(ctx, "delete orphaned tap", name, func() error { return s.orphan(l, all) })
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		removed = append(removed, owner)
	}
	return removed, err
}

func (s *session) orphan(tap netlink.Link, all []netlink.Link) error {
	// The tap goes first: it is the fence. Its number stays in the redirects' list
	// only until then, so look for them before.
	var joined []netlink.Link
	for _, l := range all {
		q, err := s.ingress(l)
		if err != nil {
			return err
		} else if q == nil || l.Attrs().Index == tap.Attrs().Index {
			continue
		}
		targets, err := s.redirects(l)
		if err != nil {
			return err
		}
		if len(targets) == 1 && targets[0] == tap.Attrs().Index {
			joined = append(joined, l)
		}
	}
	errs := []error{gone(s.nl.LinkDel(tap))}
	for _, l := range joined {
		errs = append(errs, s.unredirect(l))
	}
	return errors.Join(errs...)
}
