package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

const (
	noCapacityPause = 2 * time.Second // between two tries of a wake that fits no node
	waitDefault     = 10 * time.Minute
)

// wakeFlags are those of godwit wake.
type wakeFlags struct {
	order        *nodev1.WakeOrder
	detach, wait bool
	from         string // a snapshot to restore, even if it is not the newest state
	timeout      time.Duration
}

func newWake(opts *options) *cobra.Command {
	request := &nodev1.WakeRequest{}
	f := &wakeFlags{order: &nodev1.WakeOrder{Wake: request}}
	cmd := &cobra.Command{
		Use:   "wake VM",
		Short: "Wake a VM where it fits",
		Long: "Claim the VM for a node, restore it from the snapshot that owns it, and let it run. Without --on the " +
			"controller\n" +
			"chooses among the nodes that it fits: one that keeps a copy of the snapshot, else this one, else the one with " +
			"the most room.\n" +
			"A failure before the commit leaves it asleep, to be woken again, anywhere.",
		PreRunE: func(cmd *cobra.Command, _ []string) error { return f.check(cmd) },
		RunE: opts.onVM(func(cmd *cobra.Command, node nodev1.NodeService, vm *nodev1.VM) error {
			request.Vm = vm
			if err := opts.resolveDigests(cmd.Context(), vm, &request.Digest); err != nil {
				return err
			}
			status, err := f.wake(cmd, opts, node)
			if err != nil {
				return record.FromWire(err)
			}
			return follow(cmd, opts, node, status, f.detach)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.order.On, "on", "", "node that shall have it (default: the controller chooses)")
	flags.BoolVar(&f.wait, "wait", false, "while it fits no node, try again")
	flags.DurationVar(&f.timeout, "timeout", waitDefault, "with --wait: give up after so long")
	flags.StringVar(&f.from, "from", "", "restore this snapshot, by name or digest: what the VM did since is given up")
	flags.StringVar(&request.Digest, "digest", "", "refuse unless this snapshot owns the VM")
	flags.BoolVar(&request.Force, "force", false,
		"with --digest: restore that snapshot even if it is spent or not the newest")
	flags.StringVar(&request.LostNode, "lost-node", "",
		"the VM's node, which is lost: restore the newest snapshot, or that of --digest, on this node. You vouch that the "+
			"lost one runs nothing any more")
	flags.StringVar(&request.Stdio, "stdio", "", "log URI of the task (file:///PATH, binary:///PATH, null://)")
	flags.StringVar(&request.Operation, "operation", "", "id of the operation, to repeat the same call safely")
	flags.BoolVar(&f.detach, "detach", false, "return once the operation is durable")
	return cmd
}

// check refuses what cannot be, before the daemon is looked for.
func (f *wakeFlags) check(cmd *cobra.Command) error {
	wake, given := f.order.GetWake(), cmd.Flags().Changed
	switch {
	case given("on") && f.order.GetOn() == "":
		return fmt.Errorf("--on \"\": name a node, or leave it away: %w", errdefs.ErrInvalidArgument)
	case wake.GetLostNode() != "" && given("on"):
		return fmt.Errorf("--lost-node and --on: for another node than this one, godwit recover VM --to NODE --fenced: %w",
			errdefs.ErrInvalidArgument)
	case f.wait && (given("on") || wake.GetLostNode() != ""):
		return fmt.Errorf("--wait is for a wake whose node the controller chooses; leave --on and --lost-node away: %w",
			errdefs.ErrInvalidArgument)
	case given("timeout") && !f.wait:
		return fmt.Errorf("--timeout needs --wait: %w", errdefs.ErrInvalidArgument)
	case f.timeout <= 0:
		return fmt.Errorf("--timeout %v: more than 0: %w", f.timeout, errdefs.ErrInvalidArgument)
	case f.from != "" && given("digest"):
		return fmt.Errorf("--from and --digest: choose one. --from is --digest with --force: %w", errdefs.ErrInvalidArgument)
	case given("from"):
		f.order.Wake.Digest, f.order.Wake.Force = f.from, true
		return checkDigest("--from", f.from)
	case given("digest"):
		return checkDigest("--digest", wake.GetDigest())
	case wake.GetForce():
		return fmt.Errorf("--force: name the snapshot to restore with --digest: %w", errdefs.ErrInvalidArgument)
	}
	return nil
}

// wake orders it. A VM whose node is lost wakes here, and so does one whose daemon is of a build
// before, which knows of no choice.
func (f *wakeFlags) wake(cmd *cobra.Command, opts *options, node nodev1.NodeService) (*nodev1.StatusResponse, error) {
	ctx := cmd.Context()
	if f.order.GetWake().GetLostNode() != "" {
		return node.Wake(ctx, f.order.GetWake())
	}
	client, err := opts.movesClient()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if f.order.GetWake().GetOperation() == "" { // the client repeats a call whose connection breaks
		f.order.Wake.Operation = uuid.NewString()
	}
	order := client.Wake
	if f.wait {
		order = f.untilFits(cmd, opts, client.Wake)
	}
	status, err := order(ctx, f.order)
	if errdefs.IsNotImplemented(err) && f.order.GetOn() == "" {
		return node.Wake(ctx, f.order.GetWake())
	}
	return status, err
}

type orderWake func(context.Context, *nodev1.WakeOrder) (*nodev1.StatusResponse, error)

// untilFits gives the same order again as long as it fits no node; each reason is told once.
func (f *wakeFlags) untilFits(cmd *cobra.Command, opts *options, try orderWake) orderWake {
	return func(ctx context.Context, order *nodev1.WakeOrder) (*nodev1.StatusResponse, error) {
		said, end := "", time.Now().Add(f.timeout)
		for {
			status, err := try(ctx, order)
			if !errdefs.IsResourceExhausted(err) {
				return status, err
			}
			if time.Until(end) < noCapacityPause {
				return nil, fmt.Errorf("after %v: %w", f.timeout, err)
			}
			if said != err.Error() {
				said = err.Error()
				opts.note(cmd, "waiting: "+said)
			}
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(noCapacityPause):
			}
		}
	}
}
