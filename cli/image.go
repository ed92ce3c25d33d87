package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"
)

func newPull(opts *options) *cobra.Command {
	o, quiet := client.PullOptions{}, false
	cmd := &cobra.Command{
		Use:   "pull IMAGE",
		Short: "Fetch an image from its registry",
		Long: "Fetch an image and unpack it for VMs. It is containerd's: ctr and nerdctl have it too.\n" +
			"Ctrl-C leaves nothing of it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			c := opts.client()
			defer c.Close()
			told, stop := pulling(cmd, opts, args[0], quiet)
			o.Progress = told
			img, err := c.Pull(cmd.Context(), args[0], o)
			stop()
			if err != nil {
				return err
			}
			return opts.print(cmd, screen.Result{Value: documentOf(*img), Names: []string{img.Name},
				Text: said("%s", img.Name)})
		},
	}
	cmd.Flags().StringVar(&o.Snapshotter, "snapshotter", "", "of containerd (default: as the namespace says)")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "show no progress")
	cmd.Flags().BoolVar(&o.Insecure, "insecure-registry", false,
		"take a registry without TLS, or with a certificate of its own")
	return cmd
}

func newImages(opts *options) *cobra.Command {
	flags := screen.ListFlags{}
	cmd := &cobra.Command{
		Use:   "images",
		Short: "List the images of this node",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := opts.client()
			defer c.Close()
			all, err := c.Images(cmd.Context())
			if err != nil {
				return err
			}
			return opts.list(cmd, imageList(all), flags)
		},
	}
	flags.Add(cmd.Flags())
	return cmd
}

func imageList(all []client.Image) screen.List {
	l := screen.List{
		Columns: []screen.Column{{Title: "REPOSITORY", Least: 16}, {Title: "TAG"}, {Title: "DIGEST", Keep: true},
			{Title: "SIZE", Right: true}, {Title: "AGE"}, {Title: "NAME", Wide: true}, {Title: "WHOLE-DIGEST", Wide: true}},
		Whole: func(left []screen.Item) any {
			return imagesDocument{screen.Values[imageDocument](left)}
		},
	}
	for _, img := range all {
		name, tag := splitTag(shortImage(img.Name))
		l.Items = append(l.Items, screen.Item{Value: documentOf(img), Name: img.Name, ID: img.Digest, Row: []string{
			name, screen.Dash(tag), short(img.Digest), screen.Bytes(uint64(img.Size)), screen.Age(time.Since(img.Created)),
			img.Name, img.Digest,
		}})
	}
	return l
}

// splitTag takes the tag off an image's name. A digest in the name stays.
func splitTag(name string) (repository, tag string) {
	i := strings.LastIndexAny(name, ":/@")
	if i < 0 || name[i] != ':' || strings.Contains(name, "@") {
		return name, ""
	}
	return name[:i], name[i+1:]
}

// imagesDocument is what images prints.
type imagesDocument struct {
	Images []imageDocument `json:"images"`
}

type imageDocument struct {
	Name    string `json:"name"`
	Digest  string `json:"digest"`
	Size    int64  `json:"sizeBytes"`
	Created string `json:"createdTime"` // RFC 3339
}

func documentOf(img client.Image) imageDocument {
	return imageDocument{img.Name, img.Digest, img.Size, img.Created.UTC().Format(time.RFC3339Nano)}
}
