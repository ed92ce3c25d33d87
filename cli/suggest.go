package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"godwit.dev/godwit/client"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// mostWrong is how many letters of a word may be wrong for it to be taken for another.
const mostWrong = 2

// closest answers the words that somebody may have meant, the nearest first.
func closest(said string, known []string) []string {
	var found []string
	for _, k := range known {
		if k != said && (distance(said, k) <= max(1, min(mostWrong, len(said)/3)) ||
			len(said) > mostWrong && strings.HasPrefix(k, said)) {
			found = append(found, k)
		}
	}
	slices.SortStableFunc(found, func(a, b string) int { return distance(said, a) - distance(said, b) })
	return slices.Compact(found)
}

// distance is how many letters have to be added, removed, changed or exchanged with their neighbour to make one word of
// the other.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			other := 1
			if a[i] == b[j] {
				other = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+other)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

// meant is the question that a typo gets; empty: nothing is near.
func meant(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return fmt.Sprintf("Did you mean %s?", strings.Join(words[:min(len(words), mostMeant)], " or "))
}

// mostMeant bounds the question.
const mostMeant = 3

// wrongFlag is what is wrong with the flags of a verb.
func wrongFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return misuse(cmd, err.Error())
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, "--"+f.Name)
		}
	})
	said := "--" + unknown.GetSpecifiedName()
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		return misuse(cmd, fmt.Sprintf("it has no flag -%s", unknown.GetSpecifiedName()))
	}
	return misuse(cmd, fmt.Sprintf("it has no flag %s", said), meant(closest(said, known)))
}

// unknownVM says that there is no VM of a name, and which name is near. A list that cannot be read has no advice.
func (o *options) unknownVM(ctx context.Context, c *client.Client, said string, err error) error {
	if !errdefs.IsNotFound(err) {
		return err
	}
	vm, perr := client.ParseVM(said, o.namespace)
	if perr != nil {
		return err
	}
	p := &problem{what: fmt.Sprintf("There is no VM %q in namespace %s.", vm.GetId(), vm.GetNamespace()),
		remedy: "To see all VMs: godwit ps -a -A.", cause: err}
	node, nerr := c.Node(ctx)
	if nerr != nil {
		return p
	}
	resp, nerr := node.VMs(ctx, &nodev1.VMsRequest{Namespace: vm.GetNamespace()})
	if nerr != nil {
		return p
	}
	var known []string
	for _, info := range resp.GetVms() {
		known = append(known, vmName(info), info.GetVm().GetId())
	}
	p.why = meant(closest(vm.GetId(), known))
	return p
}
