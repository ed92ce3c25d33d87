package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// labelTemplate marks the container of a VM that a golden snapshot is made of. One that is
// there when no maker lives is a left-over. The release before has called it by the old label.
const (
	labelTemplate    = "godwit.dev/template"
	labelTemplateOld = "godwit.dev/golden"
)

// MakerID is a new id for the VM of a maker.
func MakerID() string { return "template-" + uuid.NewString()[:8] }

// madeID is what makers call their VMs, here and in the release before. The label alone is no proof:
// clients copy the labels of an image to its containers, and what is swept is ended and removed.
var madeID = regexp.MustCompile(`^(template|golden)-[0-9a-f]{8}$`)

// marks is the filter of containerd for both.
func marks() []string {
	return []string{fmt.Sprintf("labels.%q==true", labelTemplate), fmt.Sprintf("labels.%q==true", labelTemplateOld)}
}

// labelReady of an image is the command that succeeds once its program is ready.
const labelReady = "dev.godwit.ready"

// Image of a VM's container: name and digest as containerd has them. Both are empty where
// there is no such container, or it was made without an image.
func (c *Client) Image(ctx context.Context, vm *nodev1.VM) (name, digest string, err error) {
	ctx = namespaces.WithNamespace(ctx, vm.GetNamespace())
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	if errdefs.IsNotFound(err) {
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	info, err := container.Info(ctx, containerd.WithoutRefreshedMetadata)
	if err != nil || info.Image == "" {
		return "", "", err
	}
	img, err := c.containerd.ImageService().Get(ctx, info.Image)
	if errdefs.IsNotFound(err) { // removed since
		return "", "", nil
	}
	return img.Name, img.Target.Digest.String(), err
}

// Booted is a VM that was made of an image for a golden snapshot.
type Booted struct {
	VM     *nodev1.VM
	Digest string // of the image

	task  containerd.Task
	exit  <-chan containerd.ExitStatus
	probe []string // of the image; empty: it has none
}

// Boot makes a VM of an image and starts it. It has no network but its own. On error
// nothing is left.
func (c *Client) Boot(ctx context.Context, vm *nodev1.VM, req *nodev1.GoldenRequest) (_ *Booted, err error) {
	ctx = namespaces.WithNamespace(ctx, vm.GetNamespace())
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("not up in time (see --timeout): %w", context.Cause(ctx))
		}
		if err != nil {
			err = errors.Join(fmt.Errorf("boot image %s: %w", req.GetImage(), err), c.Unboot(ctx, vm))
		}
	}()
	img, err := c.containerd.GetImage(ctx, req.GetImage())
	if errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("it is not in containerd's namespace %s; pull it first (ctr -n %s images pull %s): %w",
			vm.GetNamespace(), vm.GetNamespace(), req.GetImage(), err)
	}
	if err != nil {
		return nil, err
	}
	snapshotter := req.GetSnapshotter()
	if snapshotter == "" {
		snapshotter = defaults.DefaultSnapshotter
	}
	unpacked, err := img.IsUnpacked(ctx, snapshotter)
	if err == nil && !unpacked {
		err = img.Unpack(ctx, snapshotter)
	}
	if err != nil {
		return nil, err
	}
	b := &Booted{VM: vm, Digest: img.Target().Digest.String()}
	if b.probe, err = probeOf(ctx, img); err != nil {
		return nil, err
	}
	container, err := c.containerd.NewContainer(ctx, vm.GetId(),
		containerd.WithImage(img), containerd.WithSnapshotter(snapshotter), containerd.WithNewSnapshot(vm.GetId(), img),
		containerd.WithNewSpec(oci.WithImageConfigArgs(img, req.GetArgs()), oci.WithAnnotations(req.GetAnnotations())),
		containerd.WithRuntime(c.config.Containerd.Runtime, &runtimeoptions.Options{TypeUrl: optionsURL,
			ConfigPath: c.configPath}),
		containerd.WithContainerLabels(map[string]string{labelTemplate: "true", labelStopped: "true"}),
	)
	if err != nil {
		return nil, err
	}
	if b.task, err = container.NewTask(ctx, cio.NullIO); err != nil {
		return nil, err
	}
	if b.exit, err = b.task.Wait(ctx); err != nil {
		return nil, err
	}
	return b, b.task.Start(ctx)
}

// Unboot removes what Boot has made of a VM, whatever of it there is.
func (c *Client) Unboot(ctx context.Context, vm *nodev1.VM) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(namespaces.WithNamespace(ctx, vm.GetNamespace())),
		undoTimeout)
	defer cancel()
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err == nil {
		err = c.deleteTask(ctx, vm, true)
	}
	if err == nil {
		err = container.Delete(ctx, containerd.WithSnapshotCleanup)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return nil
}

// Unfinished lists the VMs of makers that are gone.
func (c *Client) Unfinished(ctx context.Context) (vms []*nodev1.VM, err error) {
	all, err := c.containerd.NamespaceService().List(ctx)
	if err != nil {
		return nil, err
	}
	for _, ns := range all {
		list, err := c.containerd.ContainerService().List(namespaces.WithNamespace(ctx, ns), marks()...)
		if err != nil {
			return nil, err
		}
		for _, container := range list {
			if madeID.MatchString(container.ID) {
				vms = append(vms, &nodev1.VM{Namespace: ns, Id: container.ID})
			}
		}
	}
	return vms, nil
}

// probeEvery is how often a VM is asked whether it is ready.
const probeEvery = 500 * time.Millisecond

// endsWithin is how long a failed probe waits for word that the container has ended, which
// is the better reason.
const endsWithin = 2 * time.Second

// Ready returns when the VM says that it is ready: a command in it succeeds, the one of
// the request, of the image's label, or of its health check. Where there is none settled
// is asked instead.
func (c *Client) Ready(ctx context.Context, b *Booted, command string, settled func(context.Context) (bool,
	error)) error {
	ctx = namespaces.WithNamespace(ctx, b.VM.GetNamespace())
	probe := b.probe
	if command != "" {
		probe = strings.Fields(command)
	}
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	var last string
	for n := 0; ; n++ {
		var ok bool
		var err error
		if len(probe) > 0 {
			ok, last, err = b.ask(ctx, probe, fmt.Sprintf("ready%d", n))
		} else {
			ok, err = settled(ctx)
		}
		if ok && err == nil {
			return nil
		}
		if ctx.Err() != nil { // it ends the waits for the task and its execs, too: they say nothing now
			return fmt.Errorf("not ready in time (asked: %s; last answer: %s; see --ready and --timeout): %w", orSettled(probe),
				last, context.Cause(ctx))
		}
		next := tick.C
		if err != nil {
			next = time.After(endsWithin)
		}
		select {
		case status := <-b.exit:
			if err := status.Error(); err != nil {
				if ctx.Err() != nil {
					continue
				}
				return fmt.Errorf("wait for the container's end: %w", err)
			}
			return fmt.Errorf("the container ended with status %d before it was ready: %w", status.ExitCode(),
				errdefs.ErrFailedPrecondition)
		case <-next:
			if err != nil {
				return err
			}
		}
	}
}

func orSettled(probe []string) string {
	if len(probe) == 0 {
		return "whether its RAM grows"
	}
	return strings.Join(probe, " ")
}

// ask runs the command once. One that cannot be run at all is an error.
func (b *Booted) ask(ctx context.Context, probe []string, id string) (ok bool, answer string, err error) {
	s, err := b.task.Spec(ctx)
	if err != nil {
		return false, "", err
	}
	p := *s.Process
	p.Args, p.Terminal = probe, false
	exec, err := b.task.Exec(ctx, id, &p, cio.NullIO)
	if err != nil {
		return false, "", err
	}
	defer func() {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		_, e := exec.Delete(undo, containerd.WithProcessKill)
		if e != nil && !errdefs.IsNotFound(e) && err == nil {
			err = e
		}
	}()
	exit, err := exec.Wait(ctx)
	if err != nil {
		return false, "", err
	}
	if err := exec.Start(ctx); err != nil {
		return false, "", err
	}
	select {
	case status := <-exit:
		return status.ExitCode() == 0, fmt.Sprintf("status %d", status.ExitCode()), status.Error()
	case <-ctx.Done():
		return false, "none", nil
	}
}

// probeOf reads what an image says about itself: the label, else the health check that
// docker's tools write.
func probeOf(ctx context.Context, img containerd.Image) ([]string, error) {
	desc, err := img.Config(ctx)
	if err != nil {
		return nil, err
	}
	data, err := content.ReadBlob(ctx, img.ContentStore(), desc)
	if err != nil {
		return nil, err
	}
	return probeIn(data)
}

func probeIn(data []byte) ([]string, error) {
	var cfg struct {
		Config struct {
			Labels      map[string]string
			Healthcheck struct{ Test []string }
		} `json:"config"`
	}
	if err := json.Unmarshal(data, &cfg); err != nil {
		return nil, fmt.Errorf("config of the image: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if own := strings.Fields(cfg.Config.Labels[labelReady]); len(own) > 0 {
		return own, nil
	}
	if t := cfg.Config.Healthcheck.Test; len(t) > 1 {
		switch t[0] {
		case "CMD":
			return t[1:], nil
		case "CMD-SHELL":
			return []string{"/bin/sh", "-c", t[1]}, nil
		}
	}
	return nil, nil
}
