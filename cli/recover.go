package cli

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/moves"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
)

func newRecover(opts *options) *cobra.Command {
	request := &nodev1.RecoverRequest{}
	detach := false
	cmd := &cobra.Command{
		Use:   "recover VM --to NODE --fenced",
		Short: "Restore a VM whose node is lost from its newest snapshot",
		Long: "Without --fenced, say what would be restored and how old it is. With it you vouch that the lost node runs\n" +
			"nothing any more: that it is switched off, or cannot reach network and disks. What the VM did since the " +
			"snapshot is lost.\n" +
			"--from-source is for a VM that a live move has lost at its destination: the source still holds it as it was at " +
			"the\n" +
			"switch-over, and has it back. With --fenced you vouch for the destination, which says so itself if it answers.",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := opts.vm(args[0]); err != nil {
				return err
			}
			if err := checkRecover(request); err != nil {
				return err
			}
			if request.Vm, err = opts.resolve(cmd.Context(), args[0]); err != nil {
				return err
			}
			if err := opts.resolveDigests(cmd.Context(), request.GetVm(), &request.Digest); err != nil {
				return err
			}
			return opts.onMoves(func(cmd *cobra.Command, client *moves.Client, _ []string) error {
				resp, err := client.Recover(cmd.Context(), request)
				if err != nil {
					return err
				}
				r := screen.Result{Value: resp, Names: args[:1], Text: recoveredText(args[0], request, resp)}
				if resp.GetWake() != nil && (opts.machine() || opts.format() == screen.Name) { // what is read is one answer
					resp.Wake, err = await(cmd, opts, moving{client}, resp.GetWake(), detach)
					return errors.Join(err, opts.print(cmd, r))
				}
				if err := opts.print(cmd, r); err != nil || resp.GetWake() == nil {
					return err
				}
				return follow(cmd, opts, moving{client}, resp.GetWake(), detach)
			})(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&request.To, "to", "", "node that shall have it")
	flags.BoolVar(&request.Fenced, "fenced", false, "the lost node runs nothing any more: I have made sure")
	flags.StringVar(&request.Digest, "digest", "", "restore this snapshot instead of the newest")
	flags.BoolVar(&request.FromSource, "from-source", false,
		"take back what the source of a live move holds, which has lost the VM at its destination")
	flags.StringVar(&request.Operation, "operation", "", "id of the wake")
	flags.BoolVar(&detach, "detach", false, "return once the wake is durable")
	return cmd
}

func checkRecover(r *nodev1.RecoverRequest) error {
	switch {
	case r.GetFromSource() && (r.GetTo() != "" || r.GetDigest() != "" || r.GetOperation() != ""):
		return fmt.Errorf("--from-source: the source has it back as it was: leave --to, --digest and --operation away: %w",
			errdefs.ErrInvalidArgument)
	case r.GetTo() == "" && r.GetFenced() && !r.GetFromSource():
		return fmt.Errorf("--to NODE: name the node that shall have it: %w", errdefs.ErrInvalidArgument)
	case r.GetDigest() != "":
		return checkDigest("--digest", r.GetDigest())
	}
	return nil
}

func recoveredText(vm string, req *nodev1.RecoverRequest, resp *nodev1.RecoverResponse) func(io.Writer) error {
	age := time.Since(time.Unix(0, resp.GetCreatedUnixNano())).Round(time.Second)
	would := "would be"
	if req.GetFenced() {
		would = "is"
	}
	if req.GetFromSource() {
		return said("%s, lost at node %s, %s taken back by node %s as it was %v ago", vm, resp.GetLostNode(), would,
			resp.GetSource(), age)
	}
	return said("%s of node %s %s restored from %s, %v old", vm, resp.GetLostNode(), would, resp.GetDigest(), age)
}
