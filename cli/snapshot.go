package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"
)

func newSnapshot(opts *options) *cobra.Command {
	return group("snapshot", "Look at snapshots, delete and copy them",
		newSnapshotLs(opts), newSnapshotInspect(opts), newSnapshotVerify(opts), newSnapshotDiff(opts),
		newSnapshotHistory(opts), newSnapshotPin(opts), newSnapshotUnpin(opts), newSnapshotRm(opts),
		newSnapshotPrune(opts), newSnapshotCopy(opts))
}

func newSnapshotLs(opts *options) *cobra.Command {
	flags := screen.ListFlags{}
	cmd := &cobra.Command{
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
			if resp.GetWarning() != "" && !opts.machine() {
				opts.note(cmd, resp.GetWarning())
			}
			return opts.list(cmd, snapshotList(resp), flags)
		},
	}
	flags.Add(cmd.Flags())
	return cmd
}

// snapshotList shows as much of a digest as finds it.
func snapshotList(resp *nodev1.SnapshotsResponse) screen.List {
	l := screen.List{
		Columns: []screen.Column{{Title: "VM", Keep: true}, {Title: "DIGEST", Keep: true}, {Title: "NAME"},
			{Title: "AGE"}, {Title: "SIZE", Right: true}, {Title: "USE"}, {Title: "CREATED", Wide: true},
			{Title: "GEN", Wide: true},
			{Title: "OPERATION", Wide: true}, {Title: "WHOLE-DIGEST", Wide: true}},
		Whole: func(left []screen.Item) any {
			resp.Snapshots = screen.Values[*nodev1.SnapshotInfo](left)
			return resp
		},
	}
	for _, s := range resp.GetSnapshots() {
		l.Items = append(l.Items, screen.Item{Value: s, Name: s.GetDigest(), ID: s.GetDigest(), Row: snapshotRow(s),
			Keys: map[string]string{"use": useOf(s)}})
	}
	return l
}

func useOf(s *nodev1.SnapshotInfo) string {
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
	return use
}

func snapshotRow(s *nodev1.SnapshotInfo) []string {
	return []string{
		fullName(s.GetVm()), short(s.GetDigest()), screen.Dash(s.GetName()), screen.Since(s.GetCreatedUnixNano()),
		screen.Bytes(s.GetBytes()), useOf(s),
		screen.Instant(s.GetCreatedUnixNano()), fmt.Sprint(s.GetGeneration()), s.GetOperation(), s.GetDigest(),
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
			text := func(w io.Writer) error {
				_, err := fmt.Fprintln(w, string(resp.GetJson()))
				return err
			}
			return opts.print(cmd, screen.Result{Value: json.RawMessage(resp.GetJson()), Names: args[:1], Text: text})
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
			return printVerdict(cmd.OutOrStdout(), opts.format(), request.Digest, resp)
		}),
	}
	repositoryFlag(cmd, &request.Repository)
	return cmd
}

// printVerdict says what was read, each bad part in a line, and ends with DataLoss if
// there is one.
func printVerdict(w io.Writer, output screen.Format, digest string, v *nodev1.VerifyResponse) error {
	text := func(w io.Writer) error {
		for _, b := range v.GetBad() {
			_ = tell(w, "%s: %s\n", b.GetPart(), b.GetReason())
		}
		_, err := fmt.Fprintf(w, "%d packs, %d frames, %s read\n", v.GetPacks(), v.GetFrames(), screen.Bytes(v.GetBytes()))
		return err
	}
	if err := (screen.Result{Value: v, Names: []string{digest}, Text: text}).Print(w, output); err != nil {
		return err
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

func ofFlag(cmd *cobra.Command, of *string) {
	cmd.Flags().StringVar(of, "vm", "", "whose it is (default: the one VM that has it)")
}

// resolveOf finds a snapshot, and the VM of --vm; nil: it was not given.
func (o *options) resolveOf(ctx context.Context, of string, digest *string) (vm *nodev1.VM, err error) {
	if of != "" {
		if vm, err = o.resolve(ctx, of); err != nil {
			return nil, err
		}
	}
	return vm, o.resolveDigests(ctx, vm, digest)
}

func repositoryFlag(cmd *cobra.Command, repository *string) {
	cmd.Flags().StringVar(repository, "repository", "", "where it lies (default: as the record that knows it says)")
}
