package network

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// redirect sends every frame that arrives at from out of to.
// Like: tc qdisc add dev $from ingress
//
//	tc filter add dev $from parent ffff: prio 1 protocol all u32 match u32 0 0 \
//	  action mirred egress redirect dev $to
func (s *session) redirect(ctx context.Context, from, to netlink.Link) error {
	return s.redirectSome(ctx, from, to, nil)
}

// redirectSome does so with the frames that have all of keys; a nil to leaves them to the kernel.
// The filters of one interface are asked in the order in which they were made.
func (s *session) redirectSome(ctx context.Context, from, to netlink.Link, keys []netlink.TcU32Key) error {
	name, index := from.Attrs().Name, from.Attrs().Index
	err := s.step(ctx, "add ingress qdisc to", name, func() error {
		err := s.nl.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}})
		if errors.Is(err, unix.EEXIST) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	// The kernel takes the same filter twice, and would send every frame twice.
	there, err := s.redirects(from, keys)
	if err != nil {
		return err
	}
	target := 0
	var actions []netlink.Action
	if to != nil {
		target = to.Attrs().Index
		actions = []netlink.Action{netlink.NewMirredAction(target)}
	}
	if len(there) == 1 && there[0] == target {
		return nil
	} else if len(there) != 0 {
		return fmt.Errorf("redirect %s: it has ingress filters already: %w", name, errdefs.ErrFailedPrecondition)
	}
	return s.step(ctx, "redirect", name, func() error {
		f := &netlink.U32{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.MakeHandle(0xffff, 0),
				Priority: 1, Protocol: unix.ETH_P_ALL},
			Actions: actions,
		}
		if keys != nil { // nil: the library matches all
			f.Sel = &netlink.TcU32Sel{Flags: netlink.TC_U32_TERMINAL, Nkeys: uint8(len(keys)), Keys: keys}
		}
		return s.nl.FilterAdd(f)
	})
}

// endRedirect ends the redirect of all frames that arrive at l. The kernel, which then has them,
// has no address there.
// Like: tc filter del dev $l parent ffff: prio 1 handle $handle u32
func (s *session) endRedirect(ctx context.Context, l netlink.Link) error {
	filters, err := dump(func() ([]netlink.Filter, error) {
		return s.nl.FilterList(l, netlink.MakeHandle(0xffff, 0))
	})
	if err != nil {
		return fmt.Errorf("list filters of %s: %w", l.Attrs().Name, err)
	}
	for _, f := range filters {
		u, ok := f.(*netlink.U32)
		if !ok || u.Sel == nil || drains(u.Sel.Keys) {
			continue
		}
		err := s.step(ctx, "stop redirecting", l.Attrs().Name, func() error { return ignoreMissing(s.nl.FilterDel(u)) })
		if err != nil {
			return err
		}
	}
	return nil
}

// redirects lists where the ingress filters of l with these keys send frames. It is nil for those that match all; 0
// stands for a filter that does something else.
func (s *session) redirects(l netlink.Link, keys []netlink.TcU32Key) ([]int, error) {
	filters, err := dump(func() ([]netlink.Filter, error) {
		return s.nl.FilterList(l, netlink.MakeHandle(0xffff, 0))
	})
	if err != nil {
		return nil, fmt.Errorf("list filters of %s: %w", l.Attrs().Name, err)
	}
	var out []int
	for _, f := range filters {
		u, ok := f.(*netlink.U32)
		if ok && u.Sel == nil { // the hash table that comes with the filter
			continue
		}
		if ok && (keys == nil && drains(u.Sel.Keys) || keys != nil && !slices.Equal(u.Sel.Keys, keys)) {
			continue // it leads to a sink, or is not the one asked for
		}
		target := 0
		if ok && len(u.Actions) == 1 {
			if m, ok := u.Actions[0].(*netlink.MirredAction); ok {
				target = m.Ifindex
			}
		}
		out = append(out, target)
	}
	return out, nil
}

// ingress finds the qdisc that redirects hang on, nil if there is none.
func (s *session) ingress(l netlink.Link) (netlink.Qdisc, error) {
	all, err := dump(func() ([]netlink.Qdisc, error) { return s.nl.QdiscList(l) })
	if err != nil {
		return nil, fmt.Errorf("list qdiscs of %s: %w", l.Attrs().Name, err)
	}
	for _, q := range all {
		if q.Attrs().Parent == netlink.HANDLE_INGRESS {
			return q, nil
		}
	}
	return nil, nil
}

// unredirected refuses an interface whose ingress belongs to somebody else.
func (s *session) unredirected(l netlink.Link) error {
	q, err := s.ingress(l)
	if err != nil || q == nil {
		return err
	}
	return fmt.Errorf("it has an %s qdisc already, which godwit needs for itself: %w",
		q.Type(), errdefs.ErrFailedPrecondition)
}

// unredirect takes the qdisc with all its filters.
// Like: tc qdisc del dev $iface ingress
func (s *session) unredirect(l netlink.Link) error {
	q, err := s.ingress(l)
	if err != nil || q == nil {
		return err
	}
	return ignoreMissing(s.nl.QdiscDel(q))
}
