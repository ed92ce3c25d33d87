package agentd

import (
	"errors"
	"fmt"
	"slices"

	agentv1 "godwit.dev/godwit/api/agent/lean"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nicWork is a NIC on its way to what the host says of it.
type nicWork struct {
	*agentv1.NIC
	link     netlink.Link // nil: it is not there
	had      string       // its name before it was renamed
	stays    bool         // under its name: it cannot have the other
	problems []error
}

// failed notes what does not go. The other steps of the NIC are done all the same, and those of the other NICs.
func (w *nicWork) failed(err error) {
	if err != nil {
		w.problems = append(w.problems, fmt.Errorf("configure NIC %s: %w", w.Mac, err))
	}
}

func (w *nicWork) name() string { return w.link.Attrs().Name }

// moves reports whether the NIC is to have another name.
func (w *nicWork) moves() bool {
	return w.link != nil && w.Name != "" && w.Name != w.name() && !w.stays
}

// lookAtNames finds the NICs that cannot have their names: something else has them, or a NIC that stays. Such a NIC is
// not taken down for it.
func lookAtNames(all []*nicWork) {
	if !slices.ContainsFunc(all, (*nicWork).moves) {
		return
	}
	others, err := otherNames(all)
	for _, w := range all {
		if err != nil && w.moves() {
			w.failed(err)
			w.stays = true
		}
	}
	for stayed := true; stayed; {
		stayed = stay(all, others)
	}
}

// otherNames are those that none of the NICs can have from another one.
func otherNames(all []*nicWork) (map[string]bool, error) {
	links, err := whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	names := make(map[string]bool)
	for _, l := range links {
		for _, alias := range l.Attrs().AltNames { // also its own: the kernel gives it to no link
			names[alias] = true
		}
		if !slices.ContainsFunc(all, func(w *nicWork) bool {
			return w.link != nil && w.link.Attrs().Index == l.Attrs().Index
		}) {
			names[l.Attrs().Name] = true
		}
	}
	return names, nil
}

// stay notes the NICs whose names are taken, and reports whether there were any: their own names are taken then.
func stay(all []*nicWork, others map[string]bool) (any bool) {
	taken := make(map[string]bool)
	for _, w := range all {
		if w.link != nil && !w.moves() {
			taken[w.name()] = true
		}
	}
	for _, w := range all {
		if !w.moves() {
			continue
		}
		if others[w.Name] || taken[w.Name] {
			w.failed(fmt.Errorf("rename %s to %s: %w", w.name(), w.Name, unix.EEXIST))
			w.stays, any = true, true
		}
		taken[w.Name] = true
	}
	return any
}

// freeName gives a NIC that will have another name one that nothing else has: its present name may
// be wanted for another NIC. The kernel renames a link only while it is down.
func freeName(w *nicWork) {
	if !w.moves() {
		return
	}
	w.had = w.name()
	err := netlink.LinkSetDown(w.link)
	if err != nil {
		err = fmt.Errorf("take %s down: %w", w.had, err)
	} else {
		err = setName(w.link, fmt.Sprintf("godwit%d", w.link.Attrs().Index))
	}
	if err != nil {
		w.stays = true
		w.failed(err)
	}
}

// rename gives a NIC its name. One that cannot have it has its earlier one again.
func rename(w *nicWork) {
	if !w.moves() {
		return
	}
	if err := setName(w.link, w.Name); err != nil {
		w.stays = true
		w.failed(errors.Join(err, setName(w.link, w.had)))
	}
}

func setName(link netlink.Link, name string) error {
	if err := netlink.LinkSetName(link, name); err != nil {
		return fmt.Errorf("rename %s to %s: %w", link.Attrs().Name, name, err)
	}
	link.Attrs().Name = name
	return nil
}
