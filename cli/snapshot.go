package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/client"
)

func newSnapshot(opts *options) *cobra.Command {
	return group("snapshot", "Look at snapshots, delete and copy them",
		newSnapshotLs(opts), newSnapshotInspect(opts), newSnapshotVerify(opts), newSnapshotDiff(opts),
		newSnapshotHistory(opts), newSnapshotPin(opts), newSnapshotUnpin(opts), newSnapshotRm(opts),
		newSnapshotPrune(opts), newSnapshotCopy(opts))
}

func newSnapshotLs(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "ls [VM]",
		Short: "List the snapshots of a VM, or of all VMs that the controller knows",
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &nodev1.SnapshotsRequest{}
			if len(args) == 1 {
				vm, err := opts.resolve(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				request.Vm = vm
			}
			node, conn, err := opts.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer conn.Close()
			resp, err := node.Snapshots(cmd.Context(), request)
			if err != nil {
				return record.FromWire(err)
			}
			if opts.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			if resp.GetWarning() != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "godwit:", resp.GetWarning())
			}
			rows := make([][]string, 0, len(resp.GetSnapshots()))
			for _, s := range resp.GetSnapshots() {
				rows = append(rows, snapshotRow(s))
			}
			return table(cmd.OutOrStdout(), "VM DIGEST NAME GEN OPERATION CREATED BYTES USE", rows)
		},
	}
}

func snapshotRow(s *nodev1.SnapshotInfo) []string {
	use := "-"
	switch {
	case s.GetOwed():
		use = "cleanup pending"
	case s.GetOwner():
		use = "owner"
	case s.GetUse() != "":
		use = "in use"
	case s.GetPinned():
		use = "pinned"
	case s.GetSpent():
		use = "spent"
	case s.GetManual():
		use = "checkpoint by hand"
	case s.GetCheckpoint():
		use = "checkpoint"
	}
	return []string{
		s.GetVm().GetNamespace() + "/" + s.GetVm().GetId(), s.GetDigest(), dash(s.GetName()),
		fmt.Sprint(s.GetGeneration()), s.GetOperation(),
		time.Unix(0, s.GetCreatedUnixNano()).UTC().Format(time.RFC3339), mib(s.GetBytes()), use,
	}
}

func newSnapshotInspect(opts *options) *cobra.Command {
	request := &nodev1.InspectRequest{}
	cmd := &cobra.Command{
		Use:   "inspect DIGEST",
		Short: "Show manifest and configuration of a snapshot as JSON",
		Args:  firstDigest,
		RunE: opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, args []string) error {
			request.Digest = args[0]
			if err := opts.resolveDigests(cmd.Context(), nil, &request.Digest); err != nil {
				return err
			}
			resp, err := node.Inspect(cmd.Context(), request)
			if err != nil {
				return record.FromWire(err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), string(resp.GetJson()))
			return err
		}),
	}
	repositoryFlag(cmd, &request.Repository)
	return cmd
}

func newSnapshotVerify(opts *options) *cobra.Command {
	request := &nodev1.VerifyRequest{}
	cmd := &cobra.Command{
		Use:   "verify DIGEST",
		Short: "Read a whole snapshot and name what a restore would refuse",
		Args:  firstDigest,
		RunE: opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, args []string) error {
			request.Digest = args[0]
			if err := opts.resolveDigests(cmd.Context(), nil, &request.Digest); err != nil {
				return err
			}
			resp, err := node.Verify(cmd.Context(), request)
			if err != nil {
				return record.FromWire(err)
			}
			return printVerdict(cmd.OutOrStdout(), opts.output, request.Digest, resp)
		}),
	}
	repositoryFlag(cmd, &request.Repository)
	return cmd
}

// printVerdict says what was read, each bad part in a line, and ends with DataLoss if
// there is one.
func printVerdict(w io.Writer, output, digest string, v *nodev1.VerifyResponse) error {
	if output == "json" {
		if err := printJSON(w, v); err != nil {
			return err
		}
	} else {
		for _, b := range v.GetBad() {
			fmt.Fprintf(w, "%s: %s\n", b.GetPart(), b.GetReason())
		}
		fmt.Fprintf(w, "%d packs, %d frames, %s read\n", v.GetPacks(), v.GetFrames(), mib(v.GetBytes()))
	}
	if n := len(v.GetBad()) + int(v.GetMore()); n > 0 {
		return fmt.Errorf("snapshot %s: %d parts are bad: %w", digest, n, errdefs.ErrDataLoss)
	}
	return nil
}

func firstDigest(_ *cobra.Command, args []string) error {
	return checkDigest("DIGEST", args[0])
}

// checkDigest refuses what names no snapshot, by the name of what it was given for.
func checkDigest(name, said string) error {
	if err := client.CheckSnapshot(said); err != nil {
		return fmt.Errorf("%s %w", name, err)
	}
	return nil
}

func repositoryFlag(cmd *cobra.Command, repository *string) {
	cmd.Flags().StringVar(repository, "repository", "", "where it lies (default: as the record that knows it says)")
}
