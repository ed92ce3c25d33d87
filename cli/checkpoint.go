package cli

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/cli/screen"
)

// defaultKept is how many checkpoints of a schedule stay.
const defaultKept = 3

func newCheckpoint(opts *options) *cobra.Command {
	request := &nodev1.CheckpointRequest{}
	detach, push, every, keep, stop := false, pushFlags{}, time.Duration(0), uint32(0), false
	cmd := &cobra.Command{
		Use:   "checkpoint VM",
		Short: "Take a snapshot of a VM that goes on",
		Long: "Push the VM's RAM and disks while it runs, pause it for the moment that it takes to read the rest, and\n" +
			"let it go on; what was read is sent after that. The snapshot is the VM of one instant. It is listed by\n" +
			"'godwit snapshot history VM' and restored by order only: godwit wake --from DIGEST VM.\n" +
			"No rule deletes it: godwit snapshot rm does.\n" +
			"With --every, nothing is taken now: the VM's node takes checkpoints by itself, as long as the VM runs.",
		PreRunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := checkSchedule(cmd.Flags(), every, stop); err != nil {
				return err
			}
			if cmd.Flags().Changed("name") {
				if err := record.CheckSnapshotName(request.GetName()); err != nil {
					return fmt.Errorf("--name: %w", err)
				}
			}
			request.Concurrency, request.Bandwidth, request.PauseBudgetMs, err = push.read(cmd)
			return err
		},
		RunE: opts.onVM(func(cmd *cobra.Command, node nodev1.NodeService, vm *nodev1.VM) error {
			if every > 0 || stop {
				return schedule(cmd, opts, node, vm, every, keep)
			}
			request.Vm = vm
			status, err := node.Checkpoint(cmd.Context(), request)
			if err != nil {
				return record.FromWire(err)
			}
			if err := follow(cmd, opts, node, status, detach); err != nil {
				return err
			}
			return promised(request, status.GetOperation())
		}),
	}
	push.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&request.Operation, "operation", "", "id of the operation, to repeat the same call safely")
	flags.StringVar(&request.Name, "name", "", "what the snapshot is called, wherever a digest is asked for")
	flags.BoolVar(&request.Pinned, "pin", false, "have nothing delete the snapshot, until godwit snapshot unpin")
	flags.BoolVar(&detach, "detach", false, "return once the operation is durable")
	flags.DurationVar(&every, "every", 0, "have the VM's node take one so often, such as 10m")
	flags.Uint32Var(&keep, "keep", defaultKept, "with --every: so many of them stay")
	flags.BoolVar(&stop, "stop", false, "take none by itself any more")
	return cmd
}

// promised tells whether the operation has the name and the pin that were asked for. A godwitd of the release before
// leaves them away unsaid, and so does an operation that was ordered before without them.
func promised(request *nodev1.CheckpointRequest, op *nodev1.Operation) error {
	if (request.GetName() == "" || request.GetName() == op.GetSnapshotName()) &&
		(!request.GetPinned() || op.GetPinned()) {
		return nil
	}
	return fmt.Errorf("the checkpoint of operation %s has no such name or pin: it was ordered before without them, or "+
		"godwitd is of the release before. To give them to its snapshot: godwit snapshot pin --name NAME DIGEST: %w",
		op.GetId(), errdefs.ErrFailedPrecondition)
}

// checkSchedule refuses flags that say nothing together: those of a schedule are not for the
// checkpoint that is taken now, and the other way round.
func checkSchedule(flags *pflag.FlagSet, every time.Duration, stop bool) error {
	scheduled := flags.Changed("every")
	switch {
	case scheduled && stop:
		return fmt.Errorf("--every and --stop: choose one: %w", errdefs.ErrInvalidArgument)
	case scheduled && every <= 0:
		return fmt.Errorf("--every %v: more than 0: %w", every, errdefs.ErrInvalidArgument)
	case flags.Changed("keep") && !scheduled:
		return fmt.Errorf("--keep: it belongs to --every: %w", errdefs.ErrInvalidArgument)
	case !scheduled && !stop:
		return nil
	}
	for _, name := range []string{"concurrency", "bandwidth", "pause-budget", "operation", "detach", "name", "pin"} {
		if flags.Changed(name) {
			return fmt.Errorf("--%s: it is for a checkpoint that is taken now, not for --every or --stop: %w", name,
				errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// schedule tells the record; zero ends it.
func schedule(cmd *cobra.Command, opts *options, node nodev1.NodeService, vm *nodev1.VM, every time.Duration,
	keep uint32) error {
	rec, err := node.Schedule(cmd.Context(), &nodev1.ScheduleRequest{
		Vm: vm, Schedule: &nodev1.Schedule{EveryMs: every.Milliseconds(), Keep: keep},
	})
	if err != nil {
		return record.FromWire(err)
	}
	text := fmt.Sprintf("a checkpoint every %v, the last %d are kept", every, keep)
	if rec.GetSchedule() == nil {
		text = "no checkpoints are taken by themselves"
	}
	return opts.print(cmd, screen.Result{Value: rec.GetSchedule(), Names: []string{fullName(vm)},
		Text: said("%s: %s", fullName(vm), text)})
}
