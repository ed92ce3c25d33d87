package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"
)

// completeWithin bounds what a shell waits for after a tab.
const completeWithin = 2 * time.Second

// completer lists values that begin with what was typed, each perhaps with a tab and what it is.
type completer func(ctx context.Context, c *client.Client, typed string) []string

// completers are those of arguments, by their names in the lines of usage.
var completers = map[string]completer{
	"VM": vmNames, "NODE": nodeNames, "OPERATION": operationIDs, "DIGEST": digests, "FROM": digests,
	"IMAGE": imageNames, "IMAGE|DIGEST": imageNames, "TEMPLATE": templateNames,
}

// flagCompleters are those of flags that have other values than files.
var flagCompleters = map[string]completer{
	"to": nodeNames, "on": nodeNames, "lost-node": nodeNames, "retire": nodeNames, "digest": digests,
	"mode": words("auto", "live", "cold"), "abort-on": words("downtime", "stall"), "output": words(screen.Formats...),
	"vmm": words("qemu", "cloud-hypervisor"),
}

// addCompletion has shells complete the arguments and flags of a verb.
func (o *options) addCompletion(cmd *cobra.Command) {
	want := argumentsOf(cmd.Use)
	if len(want) > 0 && cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			i := min(len(args), len(want)-1)
			list := completers[want[i].name]
			if want[i].name == "TO" && want[0].name == "FROM" {
				list = digests
			}
			if len(args) >= len(want) && !want[i].many || list == nil {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return o.completed(cmd, list, typed)
		}
	}
	for name, list := range flagCompleters {
		if cmd.LocalFlags().Lookup(name) == nil && name != "output" {
			continue
		}
		complete := func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			return o.completed(cmd, list, typed)
		}
		_ = cmd.RegisterFlagCompletionFunc(name, complete) // fails if another verb has it registered already
	}
}

// completed is what a completer lists. A daemon that does not answer has no values: a shell shows no errors.
func (o *options) completed(cmd *cobra.Command, list completer, typed string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	c := o.client()
	defer c.Close()
	var fitting []string
	for _, value := range list(ctx, c, typed) {
		if strings.HasPrefix(value, typed) {
			fitting = append(fitting, value)
		}
	}
	return fitting, cobra.ShellCompDirectiveNoFileComp
}

func words(all ...string) completer {
	return func(context.Context, *client.Client, string) []string { return all }
}

// vmNames are those of the namespace, or with a slash NAMESPACE/ID of all.
func vmNames(ctx context.Context, c *client.Client, typed string) (all []string) {
	node, err := c.Node(ctx)
	if err != nil {
		return nil
	}
	whole := strings.Contains(typed, "/")
	request := &nodev1.VMsRequest{Namespace: c.Namespace()}
	if whole {
		request.Namespace = ""
	}
	resp, err := node.VMs(ctx, request)
	if err != nil {
		return nil
	}
	for _, vm := range resp.GetVms() {
		name := vmName(vm)
		if whole {
			name = fullName(vm.GetVm())
		}
		all = append(all, name+"\t"+stateWord(vm))
	}
	return all
}

func nodeNames(ctx context.Context, c *client.Client, _ string) (all []string) {
	moves, err := c.Moves()
	if err != nil {
		return nil
	}
	resp, err := moves.Nodes(ctx, &nodev1.NodesRequest{})
	if err != nil {
		return nil
	}
	for _, n := range resp.GetNodes() {
		all = append(all, n.GetName())
	}
	return all
}

func operationIDs(ctx context.Context, c *client.Client, _ string) (all []string) {
	moves, err := c.Moves()
	if err != nil {
		return nil
	}
	resp, err := moves.List(ctx, &nodev1.MovesRequest{})
	if err != nil {
		return nil
	}
	for _, m := range resp.GetMoves() {
		all = append(all, m.GetOperation().GetId()+"\t"+fullName(m.GetOperation().GetVm()))
	}
	return all
}

// digests are as short as tables show them, unless sha256: was typed.
func digests(ctx context.Context, c *client.Client, typed string) (all []string) {
	node, err := c.Node(ctx)
	if err != nil {
		return nil
	}
	resp, err := node.Snapshots(ctx, &nodev1.SnapshotsRequest{})
	if err != nil {
		return nil
	}
	for _, s := range resp.GetSnapshots() {
		digest := s.GetDigest()
		if !strings.HasPrefix(typed, "sha256:") {
			digest = strings.TrimPrefix(digest, "sha256:")
			digest = digest[:min(len(digest), max(shownDigits, len(typed)))]
		}
		all = append(all, digest+"\t"+fullName(s.GetVm()))
	}
	return all
}

func imageNames(ctx context.Context, c *client.Client, typed string) (all []string) {
	images, err := c.Images(ctx)
	if err != nil {
		return nil
	}
	for _, img := range images {
		name := shortImage(img.Name)
		if strings.HasPrefix(img.Name, typed) && typed != "" {
			name = img.Name
		}
		all = append(all, name)
	}
	return all
}

func templateNames(ctx context.Context, c *client.Client, _ string) (all []string) {
	node, err := c.Node(ctx)
	if err != nil {
		return nil
	}
	resp, err := node.Templates(ctx, &nodev1.TemplatesRequest{})
	if err != nil {
		return nil
	}
	for _, t := range resp.GetTemplates() {
		all = append(all, t.GetName()+"\t"+kindName(t))
	}
	return all
}
