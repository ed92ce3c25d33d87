package network

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
)

const (
	aliasPrefix = "godwit/"
	aliasMax    = 255 // IFALIASZ less the final zero
)

// nodeID is what Owner.Node looks like.
var nodeID = regexp.MustCompile(`^[0-9a-f]{12}$`)

// alias is what the owner's taps carry: godwit/<vm>/n<node>/g<generation>/a<attempt>.
func (o Owner) alias() (string, error) {
	a := fmt.Sprintf("%s%s/n%s/g%d/a%d", aliasPrefix, o.VM, o.Node, o.Generation, o.Attempt)
	if o.VM == "" || len(a) > aliasMax {
		return "", fmt.Errorf("name owner %q: 1 to %d bytes wanted: %w", o.VM,
			aliasMax-len(a)+len(o.VM), errdefs.ErrInvalidArgument)
	}
	if !nodeID.MatchString(o.Node) {
		return "", fmt.Errorf("name owner %q: node %q is not 12 hexadecimal digits: %w", o.VM, o.Node,
			errdefs.ErrInvalidArgument)
	}
	return a, nil
}

// Own answers the links with their owner written into them.
func Own(owner Owner, links []Link) ([]Link, error) {
	alias, err := owner.alias()
	if err != nil {
		return nil, err
	}
	links = slices.Clone(links)
	for i := range links {
		links[i].Owner = alias
	}
	return links, nil
}

// foreign reports whether a tap of that alias belongs to another VM than the link does, or to
// another attempt of the same VM.
func (l Link) foreign(alias string) bool {
	_, ours := parseAlias(alias)
	return ours && l.Owner != "" && alias != l.Owner
}

// checkOwner is NotFound where the link's tap is gone, and another VM's has its name.
func (l Link) checkOwner(tap netlink.Link) error {
	if alias := tap.Attrs().Alias; l.foreign(alias) {
		return fmt.Errorf("tap %s is %s's: %w", tap.Attrs().Name, alias, errdefs.ErrNotFound)
	}
	return nil
}

// parseAlias is the reverse of alias; ok is false for a link that is not ours. Taps of
// earlier versions name no node.
func parseAlias(alias string) (o Owner, ok bool) {
	rest, ours := strings.CutPrefix(alias, aliasPrefix)
	// The VM's name has slashes of its own: the tags are the last parts.
	rest, attempt, ok1 := cutLast(rest, "/a")
	vm, generation, ok2 := cutLast(rest, "/g")
	g, err1 := strconv.ParseUint(generation, 10, 64)
	a, err2 := strconv.ParseUint(attempt, 10, 32)
	o = Owner{Generation: g, Attempt: uint32(a)}
	if before, node, found := cutLast(vm, "/n"); found && nodeID.MatchString(node) {
		vm, o.Node = before, node
	}
	o.VM = vm
	if !ours || !ok1 || !ok2 || err1 != nil || err2 != nil || vm == "" {
		return Owner{}, false
	}
	return o, true
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
