package cli

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/cli/screen"
)

// makeTimeout is how long it may take to make one, if nothing else is said.
const makeTimeout = 5 * time.Minute

// imageFlags are of a template that is made of an image.
type imageFlags struct {
	ready, snapshotter, memory, vcpus string
	timeout                           time.Duration
}

func (f *imageFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.ready, "ready", "", "of an image: command, with its arguments, that succeeds in the container "+
		"once it is ready")
	flags.DurationVar(&f.timeout, "timeout", makeTimeout, "how long that may take")
	flags.StringVar(&f.snapshotter, "snapshotter", "", "of an image: containerd's snapshotter (default: containerd's)")
	flags.StringVar(&f.memory, "memory", "", "RAM of the VM, such as 512MiB (default: as for ctr run)")
	flags.StringVar(&f.vcpus, "vcpus", "", "vCPUs of the VM (default: as for ctr run)")
}

func (f *imageFlags) check() error {
	if f.timeout <= 0 {
		return fmt.Errorf("--timeout %v: more than 0: %w", f.timeout, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (f *imageFlags) request(namespace string, args []string) *nodev1.GoldenRequest {
	r := &nodev1.GoldenRequest{
		Namespace: namespace, Image: args[0], Args: args[1:], Ready: f.ready, Snapshotter: f.snapshotter,
		TimeoutMs: uint64(f.timeout.Milliseconds()), Annotations: map[string]string{},
	}
	for key, value := range map[string]string{"godwit.dev/memory": f.memory, "godwit.dev/vcpus": f.vcpus} {
		if value != "" {
			r.Annotations[key] = value
		}
	}
	return r
}

// bootFlags are of a template that is made of a boot.
type bootFlags struct {
	vmm          string
	nics, layers uint32
}

func (f *bootFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.vmm, "vmm", "", "of a boot: qemu or cloud-hypervisor (default: as for ctr run)")
	flags.Uint32Var(&f.nics, "nics", 1, "of a boot: NICs of the VM, 0 for one without a network")
	flags.Uint32Var(&f.layers, "layers", 1, "of a boot: read-only disks of the VM; most snapshotters give one")
}

func (f *bootFlags) shape(common *imageFlags) (*nodev1.TemplateShape, error) {
	s := &nodev1.TemplateShape{Vmm: f.vmm, Nics: f.nics, Layers: f.layers,
		TimeoutMs: uint64(common.timeout.Milliseconds())}
	if f.layers == 0 {
		return nil, fmt.Errorf("--layers 0: from 1 on: %w", errdefs.ErrInvalidArgument)
	}
	if common.memory != "" {
		m, err := config.ParseSize(common.memory)
		if err != nil {
			return nil, fmt.Errorf("--memory %s: %w", common.memory, err)
		}
		s.Memory = uint64(m)
	}
	if common.vcpus != "" {
		n, err := strconv.ParseUint(common.vcpus, 10, 16)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("--vcpus %s: not a number from 1 on: %w", common.vcpus, errdefs.ErrInvalidArgument)
		}
		s.Vcpus = uint32(n)
	}
	return s, nil
}

func newTemplateMake(opts *options) *cobra.Command {
	kinds, image, boot := &kindFlags{}, &imageFlags{}, &bootFlags{}
	cmd := &cobra.Command{
		Use:   "make [IMAGE] [COMMAND] [ARG...]",
		Short: "Make a template of a boot, or of an image",
		Long: "--boot: a guest without an image is booted now, and VMs of the same shape start as copies of it. Shapes " +
			"that are used often get theirs without an order.\n" +
			"--image IMAGE: a VM of the image is booted, without a network, and its pages are stored when it is ready: when " +
			"the command of --ready,\n" +
			"of the image's label dev.godwit.ready or of its health check succeeds in it, else when its RAM stops growing.\n" +
			"From then on VMs of that image sleep without storing these pages again, on every node. Nothing wakes from it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := makeRequest(cmd, opts.namespace, kinds, image, boot, args)
			if err != nil {
				return err
			}
			return opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, _ []string) error {
				resp, err := node.TemplateMake(cmd.Context(), req)
				if err != nil {
					return record.FromWire(err)
				}
				name := resp.GetTemplate().GetName()
				return opts.print(cmd, screen.Result{Value: resp, Names: []string{name}, Text: madeText(resp)})
			})(cmd, args)
		},
	}
	cmd.Flags().SetInterspersed(false) // what comes after the image is the container's
	kinds.add(cmd)
	image.add(cmd)
	boot.add(cmd)
	return cmd
}

// makeRequest refuses what does not belong together.
func makeRequest(cmd *cobra.Command, namespace string, kinds *kindFlags, image *imageFlags, boot *bootFlags,
	args []string) (*nodev1.TemplateMakeRequest, error) {
	kind, err := kinds.kind(cmd)
	if err == nil {
		err = image.check()
	}
	if err != nil {
		return nil, err
	}
	req := &nodev1.TemplateMakeRequest{Kind: kind}
	switch kind {
	case bootKind:
		if len(args) > 0 {
			return nil, misuse(cmd, fmt.Sprintf("%q is one argument too many: there is no image in a template of a boot",
				args[0]))
		}
		if err := without(cmd, "--image", "ready", "snapshotter"); err != nil {
			return nil, err
		}
		req.Boot, err = boot.shape(image)
	case imageKind:
		if len(args) == 0 || args[0] == "" {
			return nil, misuse(cmd, "IMAGE is missing: "+arguments["IMAGE"])
		}
		err = without(cmd, "--boot", "vmm", "nics", "layers")
		req.Image = image.request(namespace, args)
	default:
		return nil, misuse(cmd, "--boot or --image is missing")
	}
	return req, err
}

func madeText(resp *nodev1.TemplateMakeResponse) func(io.Writer) error {
	t := resp.GetTemplate()
	round := func(ms uint64) time.Duration {
		return (time.Duration(ms) * time.Millisecond).Round(100 * time.Millisecond)
	}
	how := fmt.Sprintf("made in %v, %s stored", round(resp.GetTookMs()), screen.Bytes(t.GetBytes()))
	switch {
	case resp.GetExisted():
		how = "it was there"
	case t.GetKind() == imageKind:
		how = fmt.Sprintf("ready after %v, %s stored of %s", round(resp.GetReadyMs()), screen.Bytes(resp.GetPushedBytes()),
			screen.Bytes(resp.GetResidentBytes()))
	}
	return said("%s template of %s (%s)", t.GetName(), about(t), how)
}
