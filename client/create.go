package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// nameForm is that of containerd's ids.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9]+(?:[._-](?:[A-Za-z0-9]+))*$`)

func checkName(name string) error {
	if !nameForm.MatchString(name) || len(name) > maxName {
		return fmt.Errorf("name %q: write letters and digits, with single . _ - between them, at most %d characters: %w",
			name, maxName, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Create makes a VM that does not run yet, and pulls its image where that is missing. A name that is taken is
// AlreadyExists. After an error, or an interrupt, nothing of it is left.
func (c *Client) Create(ctx context.Context, o VMOptions) (*nodev1.VM, error) {
	m, err := o.check()
	if err != nil {
		return nil, err
	}
	ctr, err := c.Containerd()
	if err != nil {
		return nil, err
	}
	ctx = namespaces.WithNamespace(ctx, c.namespace)
	if err := c.recent(ctx, ctr); err != nil {
		return nil, err
	}
	if m.name == "" {
		m.name = madeUp(o.Image)
	} else if err := c.free(ctx, m.name); err != nil {
		return nil, err
	}
	if m.network, err = c.planNetwork(m); err != nil {
		return nil, err
	}
	if len(m.ports) > 0 {
		taken, err := c.takenPorts(ctx)
		if err != nil {
			return nil, err
		}
		if m.ports, err = choosePorts(m.ports, taken); err != nil {
			return nil, err
		}
	}
	if m.log, err = c.logURI(c.namespace, m.name); err != nil {
		return nil, err
	}
	ctx, done, err := c.leased(ctx, c.namespace)
	if err != nil {
		return nil, err
	}
	defer done()
	img, err := c.image(ctx, m)
	if err != nil {
		return nil, err
	}
	if err := c.make(ctx, ctr, img, m); err != nil {
		return nil, fmt.Errorf("create VM %s: %w", m.name, err)
	}
	return &nodev1.VM{Namespace: c.namespace, Id: m.name}, nil
}

// image is there, or is pulled, as was said; unpacked for the snapshotter.
func (c *Client) image(ctx context.Context, m *making) (containerd.Image, error) {
	name, err := ImageName(m.Image)
	if err != nil {
		return nil, err
	}
	ctr, err := c.Containerd()
	if err != nil {
		return nil, err
	}
	if m.Pull != "always" {
		img, err := ctr.GetImage(ctx, name)
		if err == nil {
			return img, c.unpack(ctx, img, m.Snapshotter)
		}
		if !errdefs.IsNotFound(err) {
			return nil, c.containerdError("look for image "+name, err)
		}
		if m.Pull == "never" {
			return nil, fmt.Errorf("image %s is not here, and --pull never was said. To fetch it: godwit pull %s: %w", name,
				m.Image, errdefs.ErrNotFound)
		}
	}
	return c.pull(ctx, name, PullOptions{Snapshotter: m.Snapshotter, Insecure: m.Insecure, Progress: m.Progress})
}

func (c *Client) unpack(ctx context.Context, img containerd.Image, snapshotter string) error {
	unpacked, err := img.IsUnpacked(ctx, snapshotter)
	if err == nil && !unpacked {
		err = img.Unpack(ctx, snapshotter)
	}
	if err != nil {
		return fmt.Errorf("unpack image %s: %w", img.Name(), err)
	}
	return nil
}

// make makes snapshot and container. Each is made to its end also if the user interrupts meanwhile: so it is known what
// there is to remove.
func (c *Client) make(ctx context.Context, ctr *containerd.Client, img containerd.Image, m *making) (err error) {
	labels, err := m.labels(c.namespace)
	if err != nil {
		return err
	}
	runtime, options, err := c.runtime()
	if err != nil {
		return err
	}
	whole := context.WithoutCancel(ctx)
	key := m.name + "-" + suffix() // a snapshot that an earlier VM of that name has left is not taken for it
	snapshotter := m.Snapshotter
	if snapshotter == "" {
		if snapshotter, err = ctr.GetLabel(ctx, defaults.DefaultSnapshotterNSLabel); err != nil {
			return c.containerdError("ask for the snapshotter", err)
		}
		snapshotter = cmp.Or(snapshotter, defaults.DefaultSnapshotter)
	}
	_, err = ctr.NewContainer(whole, m.name, containerd.WithImage(img), containerd.WithImageConfigLabels(img),
		containerd.WithSnapshotter(snapshotter),
		containerd.WithNewSnapshot(key, img), containerd.WithRuntime(runtime, options),
		containerd.WithImageStopSignal(img, "SIGTERM"), containerd.WithNewSpec(m.spec(img)...),
		containerd.WithAdditionalContainerLabels(labels))
	if err == nil && ctx.Err() == nil {
		return nil
	}
	after, cancel := cleaning(ctx)
	defer cancel()
	if err == nil {
		err = errors.Join(ctx.Err(), ctr.ContainerService().Delete(after, m.name))
	} else if errdefs.IsAlreadyExists(err) {
		err = taken(m.name)
	}
	if gone := ctr.SnapshotService(snapshotter).Remove(after, key); gone != nil && !errdefs.IsNotFound(gone) {
		err = errors.Join(err, gone)
	}
	return err
}

func suffix() string {
	b := make([]byte, 4)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

// madeUp is a name for a VM that was given none: that of its image, and some digits.
func madeUp(image string) string {
	base := "vm"
	if named, err := reference.ParseDockerRef(image); err == nil {
		base = path.Base(reference.Path(named))
	}
	base = strings.Trim(regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(base, "-"), "-")
	if base == "" || len(base) > 40 {
		base = "vm"
	}
	return base + "-" + suffix()
}

// runtime is godwit's, with its configuration file where that is not the usual one.
func (c *Client) runtime() (name string, options any, err error) {
	cfg, err := c.load()
	if err != nil {
		return "", nil, err
	}
	if c.configPath == "" {
		return cfg.Containerd.Runtime, nil, nil
	}
	return cfg.Containerd.Runtime, &runtimeoptions.Options{TypeUrl: optionsURL, ConfigPath: c.configPath}, nil
}

// optionsURL is the type under which a runtime's own config file is named.
const optionsURL = "godwit.dev/config"

// free refuses a name that a container of this node has, or a VM that sleeps or runs elsewhere.
func (c *Client) free(ctx context.Context, name string) error {
	away, err := c.surelyAway(ctx, &nodev1.VM{Namespace: c.namespace, Id: name})
	if err = cmp.Or(away, err); err != nil {
		return err
	}
	return c.untaken(ctx, &nodev1.VM{Namespace: c.namespace, Id: name}, "")
}

// untaken refuses a name that a container of this node has, as its name or its id. The one with the id own may.
func (c *Client) untaken(ctx context.Context, name *nodev1.VM, own string) error {
	found, err := c.matching(ctx, name)
	if err != nil {
		return err
	}
	for _, f := range found {
		if id := f.VM.GetId(); id != own && (f.Name == name.GetId() || id == name.GetId()) {
			return taken(name.GetId())
		}
	}
	return nil
}

func taken(name string) error {
	return &Problem{What: fmt.Sprintf("The name %s is taken.", name), Why: "Another VM or container has it.",
		Remedy: fmt.Sprintf("To run that one: godwit start %s. To remove it: godwit rm %s. "+
			"Or choose another name, with --name.", name, name), Cause: errdefs.ErrAlreadyExists}
}

// takenPorts are the host's ports that containers publish, and the name of each.
func (c *Client) takenPorts(ctx context.Context) (map[string]string, error) {
	ctr, err := c.Containerd()
	if err != nil {
		return nil, err
	}
	list, err := ctr.ContainerService().List(ctx, fmt.Sprintf(`labels."%s"`, LabelPorts))
	if err != nil {
		return nil, c.containerdError("list containers", err)
	}
	all := map[string]string{}
	for _, obj := range list {
		if !c.alive(ctx, obj.ID) {
			continue
		}
		ports, err := portsOf(obj.Labels)
		if err != nil {
			continue // another program wrote it
		}
		for _, p := range ports {
			all[portKey(p)] = obj.Labels[LabelName]
		}
	}
	return all, nil
}

// logURI is where the output of a detached VM goes.
func (c *Client) logURI(namespace, name string) (string, error) {
	cfg, err := c.load()
	if err != nil {
		return "", err
	}
	own := *cfg
	own.StdioURI = cmp.Or(own.StdioURI, config.Default().StdioURI)
	u, err := own.TaskOutput(namespace, name)
	if err != nil {
		return "", fmt.Errorf("stdio_uri: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return u.String(), nil
}
