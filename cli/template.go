package cli

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/cli/screen"
)

const (
	bootKind  = nodev1.TemplateKind_TEMPLATE_KIND_BOOT
	imageKind = nodev1.TemplateKind_TEMPLATE_KIND_IMAGE
)

func newTemplate(opts *options) *cobra.Command {
	return group("template", "List, make, delete and push what VMs share: states after a boot, pages of images",
		newTemplateLs(opts), newTemplateMake(opts), newTemplateRm(opts), newTemplatePush(opts))
}

// kindFlags name one of the kinds, or none of them.
type kindFlags struct{ boot, image bool }

func (k *kindFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&k.boot, "boot", false,
		"templates of boots: RAM and device state of a guest without an image, on this node")
	cmd.Flags().BoolVar(&k.image, "image", false,
		"templates of images (golden snapshots): pages of a program that has started, in the store")
}

// kind is UNSPECIFIED for neither.
func (k *kindFlags) kind(cmd *cobra.Command) (nodev1.TemplateKind, error) {
	switch {
	case k.boot && k.image:
		return 0, misuse(cmd, "--boot and --image are both there, one at most is taken")
	case k.boot:
		return bootKind, nil
	case k.image:
		return imageKind, nil
	}
	return nodev1.TemplateKind_TEMPLATE_KIND_UNSPECIFIED, nil
}

// onTemplates is the body of a verb about templates: a wrong kind is refused before the daemon is
// looked for.
func (o *options) onTemplates(k *kindFlags, do func(cmd *cobra.Command, node nodev1.NodeService,
	kind nodev1.TemplateKind, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		kind, err := k.kind(cmd)
		if err != nil {
			return err
		}
		return o.onNode(func(cmd *cobra.Command, node nodev1.NodeService, args []string) error {
			return do(cmd, node, kind, args)
		})(cmd, args)
	}
}

func newTemplateLs(opts *options) *cobra.Command {
	kinds, flags := &kindFlags{}, screen.ListFlags{}
	cmd := &cobra.Command{
		Use: "ls", Short: "List templates of both kinds, or of one",
		RunE: opts.onTemplates(kinds, func(cmd *cobra.Command, node nodev1.NodeService, kind nodev1.TemplateKind,
			_ []string) error {
			resp, err := node.Templates(cmd.Context(), &nodev1.TemplatesRequest{Kind: kind})
			if err != nil {
				return record.FromWire(err)
			}
			if resp.GetWarning() != "" {
				opts.note(cmd, resp.GetWarning())
			}
			return opts.list(cmd, templateList(resp), flags)
		}),
	}
	kinds.add(cmd)
	flags.Add(cmd.Flags())
	return cmd
}

func templateList(resp *nodev1.TemplatesResponse) screen.List {
	l := screen.List{
		Columns: []screen.Column{{Title: "NAME", Keep: true}, {Title: "KIND"}, {Title: "IMAGE"},
			{Title: "MEMORY", Right: true}, {Title: "SIZE", Right: true}, {Title: "AGE", Spare: true},
			{Title: "USED", Spare: true},
			{Title: "VCPUS", Right: true, Wide: true}, {Title: "DEVICES", Wide: true}, {Title: "VMM", Wide: true},
			{Title: "WHOLE-NAME", Wide: true}},
		Whole: func(left []screen.Item) any {
			resp.Templates = screen.Values[*nodev1.TemplateInfo](left)
			return resp
		},
	}
	for _, t := range resp.GetTemplates() {
		l.Items = append(l.Items, screen.Item{Value: t, Name: t.GetName(), ID: t.GetName(), Row: templateRow(t),
			Keys: map[string]string{"kind": kindName(t)}})
	}
	return l
}

func templateRow(t *nodev1.TemplateInfo) []string {
	devices := "-"
	if t.GetKind() == bootKind {
		devices = fmt.Sprintf("%d disks, %d NICs", t.GetDisks(), t.GetNics())
	}
	used := "-"
	if at := t.GetUsedUnixNano(); at != 0 {
		used = screen.Since(at) + " ago"
	}
	return []string{
		shortName(t.GetName()), kindName(t), screen.Dash(shortImage(t.GetImage())), screen.Bytes(t.GetMemory()),
		screen.Bytes(t.GetBytes()), screen.Since(t.GetCreatedUnixNano()), used, fmt.Sprint(t.GetVcpus()), devices, t.GetVmm(),
		t.GetName(),
	}
}

// shortName is a digest's beginning, or a name that is none.
func shortName(name string) string {
	if strings.HasPrefix(name, "sha256:") {
		return short(name)
	}
	return name
}

func kindName(t *nodev1.TemplateInfo) string {
	return lower(t.GetKind().String(), "TEMPLATE_KIND_")
}

func newTemplateRm(opts *options) *cobra.Command {
	kinds := &kindFlags{}
	cmd := &cobra.Command{
		Use: "rm TEMPLATE", Short: "Delete a template by its name, or those of an image",
		Long: "VMs go on as before. VMs of a boot's shape boot until it is made again. Snapshots that refer to the pages " +
			"of a golden snapshot keep them.",
		RunE: opts.onTemplates(kinds, func(cmd *cobra.Command, node nodev1.NodeService, kind nodev1.TemplateKind,
			args []string) error {
			resp, err := node.TemplateRemove(cmd.Context(), &nodev1.TemplateRemoveRequest{Kind: kind, What: args[0]})
			if err != nil {
				return record.FromWire(err)
			}
			var names, lines []string
			for _, t := range resp.GetRemoved() {
				names = append(names, t.GetName())
				lines = append(lines, fmt.Sprintf("%s deleted (%s)", t.GetName(), about(t)))
			}
			return opts.print(cmd, screen.Result{Value: resp, Names: names, Text: saidLines(lines)})
		}),
	}
	kinds.add(cmd)
	return cmd
}

// about says in a few words what a template is of.
func about(t *nodev1.TemplateInfo) string {
	if t.GetKind() == imageKind {
		return "image " + screen.Dash(t.GetImage())
	}
	return fmt.Sprintf("boot, %s, %d vCPUs, %d disks, %d NICs", screen.Bytes(t.GetMemory()), t.GetVcpus(), t.GetDisks(),
		t.GetNics())
}

func newTemplatePush(opts *options) *cobra.Command {
	kinds := &kindFlags{}
	cmd := &cobra.Command{
		Use: "push TEMPLATE TO", Short: "Copy a golden snapshot, verified, to where the nodes of another store find it",
		Long: "TO is what those nodes have as registry.repository, or oci-layout: and their registry.layout.\n" +
			"A template of a boot is refused: it is of one node's build, VMM, CPU and kernel.",
		RunE: opts.onTemplates(kinds, func(cmd *cobra.Command, node nodev1.NodeService, kind nodev1.TemplateKind,
			args []string) error {
			resp, err := node.TemplatePush(cmd.Context(), &nodev1.TemplatePushRequest{Kind: kind, What: args[0], To: args[1]})
			if err != nil {
				return record.FromWire(err)
			}
			var names, lines []string
			for _, p := range resp.GetPushed() {
				names = append(names, p.GetTemplate().GetName())
				lines = append(lines, fmt.Sprintf("%s is in %s (%s sent of %s)", p.GetTemplate().GetName(),
					p.GetRepository(), screen.Bytes(p.GetBytes()), screen.Bytes(p.GetTotal())))
			}
			return opts.print(cmd, screen.Result{Value: resp, Names: names, Text: saidLines(lines)})
		}),
	}
	kinds.add(cmd)
	return cmd
}

// without refuses flags that belong to the other kind.
func without(cmd *cobra.Command, kind string, flags ...string) error {
	for _, name := range flags {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s: it belongs to %s: %w", name, kind, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}
