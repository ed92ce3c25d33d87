package main

import (
	"fmt"
	"io"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// goldenTimeout is how long it may take to make one, if nothing else is said.
const goldenTimeout = 5 * time.Minute

func newGolden(opts *options) *cobra.Command {
	request := &nodev1.GoldenRequest{}
	var timeout time.Duration
	var memory, vcpus string
	cmd := &cobra.Command{
		Use:   "golden IMAGE [COMMAND [ARG...]]",
		Short: "Store the pages that all VMs of an image have in common",
		Long: "A VM of the image is booted, without a network, and captured when it is ready: when the command of --ready,\n" +
			"of the image's label dev.godwit.ready or of its health check succeeds in it, else when its RAM stops growing.\n" +
			"From then on VMs of that image sleep without storing these pages again, on every node. Nothing wakes from it.",
		PreRunE: func(*cobra.Command, []string) error {
			if timeout <= 0 {
				return fmt.Errorf("--timeout %v: more than 0: %w", timeout, errdefs.ErrInvalidArgument)
			}
			return nil
		},
		RunE: opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, args []string) error {
			request.Namespace, request.Image, request.Args = opts.namespace, args[0], args[1:]
			request.TimeoutMs, request.Annotations = uint64(timeout.Milliseconds()), map[string]string{}
			for key, value := range map[string]string{"godwit.dev/memory": memory, "godwit.dev/vcpus": vcpus} {
				if value != "" {
					request.Annotations[key] = value
				}
			}
			resp, err := node.Golden(cmd.Context(), request)
			if err != nil {
				return record.FromWire(err)
			}
			if opts.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s golden snapshot of %s (ready after %v, %s stored of %s)\n", resp.GetDigest(), request.GetImage(),
				(time.Duration(resp.GetReadyMs()) * time.Millisecond).Round(100*time.Millisecond), mib(resp.GetPushedBytes()), mib(resp.GetResidentBytes()))
			return err
		}),
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what stands behind the image is the container's
	flags.StringVar(&request.Ready, "ready", "", "command, with its arguments, that succeeds in the container once it is ready")
	flags.DurationVar(&timeout, "timeout", goldenTimeout, "how long that may take")
	flags.StringVar(&request.Snapshotter, "snapshotter", "", "containerd's snapshotter (default: containerd's)")
	flags.StringVar(&memory, "memory", "", "RAM of the VM, such as 512MiB (default: as for ctr run)")
	flags.StringVar(&vcpus, "vcpus", "", "vCPUs of the VM (default: as for ctr run)")
	cmd.AddCommand(newGoldenList(opts), newGoldenRemove(opts))
	return cmd
}

func newGoldenList(opts *options) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List golden snapshots",
		RunE: opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, _ []string) error {
			resp, err := node.GoldenList(cmd.Context(), &nodev1.GoldenListRequest{})
			if err != nil {
				return record.FromWire(err)
			}
			if opts.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			return printGolden(cmd.OutOrStdout(), resp.GetGolden())
		}),
	}
}

func printGolden(w io.Writer, list []*nodev1.GoldenInfo) error {
	rows := make([][]string, 0, len(list))
	for _, g := range list {
		rows = append(rows, []string{
			g.GetName(), g.GetImage(), g.GetVmm(), mib(g.GetMemory()), fmt.Sprint(g.GetVcpus()), mib(g.GetBytes()),
			time.Unix(0, g.GetCreatedUnixNano()).UTC().Format(time.RFC3339), g.GetDigest(),
		})
	}
	return table(w, "NAME IMAGE VMM MEMORY VCPUS SIZE CREATED DIGEST", rows)
}

func newGoldenRemove(opts *options) *cobra.Command {
	return &cobra.Command{
		Use: "rm IMAGE|DIGEST", Short: "Delete the golden snapshots of an image, or one by its digest",
		Long: "Snapshots that refer to its pages keep them: every VM sleeps and wakes as before.",
		RunE: opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, args []string) error {
			resp, err := node.GoldenDrop(cmd.Context(), &nodev1.GoldenDropRequest{What: args[0]})
			if err != nil {
				return record.FromWire(err)
			}
			if opts.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			for _, g := range resp.GetDropped() {
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s of %s deleted\n", g.GetDigest(), g.GetName()); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}
