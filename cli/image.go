package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/client"
)

func newPull(opts *options) *cobra.Command {
	o := client.PullOptions{}
	cmd := &cobra.Command{
		Use:   "pull IMAGE",
		Short: "Fetch an image from its registry",
		Long: "Fetch an image and unpack it for VMs. It is containerd's: ctr and nerdctl have it too.\n" +
			"Ctrl-C leaves nothing of it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			c := opts.client()
			defer c.Close()
			shown := newProgress(cmd.ErrOrStderr(), opts.output == "json")
			o.Progress = func(p client.PullProgress) {
				shown.update(&nodev1.StatusResponse{Step: p.Phase + " " + args[0], Done: uint64(p.Done), Total: uint64(p.Total)})
			}
			img, err := c.Pull(cmd.Context(), args[0], o)
			shown.finish()
			if err != nil {
				return err
			}
			if opts.output == "json" {
				return printDocument(cmd.OutOrStdout(), imageDocument(*img))
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), img.Name)
			return err
		},
	}
	cmd.Flags().StringVar(&o.Snapshotter, "snapshotter", "", "of containerd (default: as the namespace says)")
	cmd.Flags().BoolVar(&o.Insecure, "insecure-registry", false,
		"take a registry without TLS, or with a certificate of its own")
	return cmd
}

func newImages(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "images",
		Short: "List the images of this node",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := opts.client()
			defer c.Close()
			all, err := c.Images(cmd.Context())
			if err != nil {
				return err
			}
			if opts.output == "json" {
				list := make([]map[string]any, 0, len(all))
				for _, img := range all {
					list = append(list, imageDocument(img))
				}
				return printDocument(cmd.OutOrStdout(), map[string]any{"images": list})
			}
			rows := make([][]string, 0, len(all))
			for _, img := range all {
				name, tag := splitTag(img.Name)
				rows = append(rows, []string{name, dash(tag), short(img.Digest), mib(uint64(img.Size)),
					img.Created.UTC().Format(time.RFC3339)})
			}
			return table(cmd.OutOrStdout(), "REPOSITORY TAG DIGEST SIZE CREATED", rows)
		},
	}
}

// splitTag takes the tag off an image's name. A digest in the name stays.
func splitTag(name string) (repository, tag string) {
	i := strings.LastIndexAny(name, ":/@")
	if i < 0 || name[i] != ':' || strings.Contains(name, "@") {
		return name, ""
	}
	return name[:i], name[i+1:]
}

func imageDocument(img client.Image) map[string]any {
	return map[string]any{"name": img.Name, "digest": img.Digest, "sizeBytes": img.Size,
		"created": img.Created.UTC().Format(time.RFC3339Nano)}
}

// printDocument writes what is no message of the API as one JSON document.
func printDocument(w io.Writer, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, string(data))
	return err
}
