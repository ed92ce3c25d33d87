package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/cli/screen"
)

func newController(opts *options) *cobra.Command {
	return group("controller", "Look after the store of the records", newControllerRestore(opts),
		newControllerRetire(opts), newControllerStatus(opts))
}

// onStore is the body of a verb about the store of the records.
func (o *options) onStore(do func(context.Context, nodev1.StoreService, []string) (*nodev1.StoreState,
	error)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		socket, err := o.daemon()
		if err != nil {
			return err
		}
		client := record.Local(socket)
		defer client.Close()
		state, err := do(cmd.Context(), record.StoreClient{Client: client}, args)
		if err != nil {
			return err
		}
		return o.print(cmd, screen.Result{Value: state, Text: func(w io.Writer) error { return printStore(w, state, true) }})
	}
}

func newControllerRestore(opts *options) *cobra.Command {
	var retire []string
	var atStart bool
	now := opts.onStore(func(ctx context.Context, store nodev1.StoreService, _ []string) (*nodev1.StoreState, error) {
		return store.Restore(ctx, &nodev1.RestoreRequest{Retire: retire})
	})
	cmd := &cobra.Command{
		Use:   "restore",
		Short: "Say that the store of the records was put back from a copy: no record changes until all nodes have reported",
		RunE: func(cmd *cobra.Command, args []string) error {
			if atStart {
				return opts.restoreAtStart(cmd, retire)
			}
			return now(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&atStart, "at-start", false,
		"godwitd is stopped: have it do this as it starts, before it serves anybody")
	cmd.Flags().StringSliceVar(&retire, "retire", nil,
		"a node that is gone for good, and runs no VM any more: the others do not wait for it")
	return cmd
}

// restoreOrder is where an order lies for a godwitd that does not run.
type restoreOrder struct {
	Order string `json:"order"`
}

// restoreAtStart leaves the order for the godwitd of this node.
func (o *options) restoreAtStart(cmd *cobra.Command, retire []string) error {
	cfg, err := config.Load(o.config)
	if err != nil {
		return err
	}
	if address := cfg.Controller.Address; address != "" {
		return fmt.Errorf("--at-start: this node is no controller, %s is (controller.address): order it there: %w", address,
			errdefs.ErrInvalidArgument)
	}
	path, err := record.OrderedRestore{Retire: retire}.Store(cfg.StateDir)
	if err != nil {
		return err
	}
	return o.print(cmd, screen.Result{Value: restoreOrder{Order: path}, Names: []string{path},
		Text: said("the order lies in %s: godwitd gives the store a new incarnation as it starts", path)})
}

func newControllerRetire(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "retire NODE",
		Short: "Wait no more for a node that is gone for good, or believe no more what it reports",
		RunE: opts.onStore(func(ctx context.Context, store nodev1.StoreService, args []string) (*nodev1.StoreState, error) {
			return store.Retire(ctx, &nodev1.RetireRequest{Node: args[0]})
		}),
	}
}

func newControllerStatus(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Tell whether records change, and which nodes have not reported",
		RunE: opts.onStore(func(ctx context.Context, store nodev1.StoreService, _ []string) (*nodev1.StoreState, error) {
			return store.State(ctx, &nodev1.StateRequest{})
		}),
	}
}

// printStore tells the state of the store; one in which all is well only if all is set.
func printStore(w io.Writer, s *nodev1.StoreState, all bool) error {
	var lines []string
	since := ""
	if n := s.GetSinceUnixNano(); n > 0 {
		since = ", restored " + time.Unix(0, n).UTC().Format(time.RFC3339)
	}
	switch {
	case s.GetBehind() != nil && s.GetBehind().GetNode() == "":
		lines = append(lines, "records do not change: the store is older than it was: "+s.GetBehind().GetReason(),
			"  put back from a copy, or another one: godwit controller restore")
	case s.GetBehind() != nil:
		lines = append(lines, fmt.Sprintf("records do not change: the store is older than what node %s holds: %s",
			s.GetBehind().GetNode(), s.GetBehind().GetReason()),
			fmt.Sprintf("  put back from a copy: godwit controller restore; node %s lies: godwit controller retire %s",
				s.GetBehind().GetNode(), s.GetBehind().GetNode()))
	case s.GetWaiting() && len(s.GetMissing()) > 0:
		lines = append(lines, fmt.Sprintf("records do not change (incarnation %d%s): nodes have not reported: %s",
			s.GetIncarnation(), since, strings.Join(s.GetMissing(), ", ")),
			"  start godwitd there; gone for good: godwit controller retire NODE")
	case s.GetWaiting():
		lines = append(lines, fmt.Sprintf("records do not change (incarnation %d%s): all nodes have reported, records are "+
			"being settled", s.GetIncarnation(), since))
	case all:
		lines = append(lines, fmt.Sprintf("records change (incarnation %d%s)", s.GetIncarnation(), since))
	}
	if n := s.GetConflicts(); n > 0 {
		lines = append(lines, fmt.Sprintf("%d VMs were not settled: godwit ps -A names them, and what to do", n))
	}
	for _, d := range s.GetDoubts() {
		word := fmt.Sprintf("nobody claims it (put back from a copy: godwit controller restore; node %s lies: godwit "+
			"controller retire %s)", d.GetNode(), d.GetNode())
		switch {
		case d.GetRefuted():
			word = "it is not believed"
		case d.GetOwner() != "" && !d.GetCredible():
			word = "nobody claims it, and node " + d.GetOwner() + " is asked"
		case d.GetVm() == nil:
			word = strings.Replace(word, "it", "a VM of that node", 1)
		}
		lines = append(lines, fmt.Sprintf("node %s says what the records do not bear out: %s; %s", d.GetNode(),
			d.GetReason(), word))
	}
	for _, l := range lines {
		if err := tell(w, "%s\n", l); err != nil {
			return err
		}
	}
	return nil
}
