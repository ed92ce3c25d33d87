package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/rampool"
	"godwit.dev/godwit/shim/template"
)

// Most of a shape: the slots of a VM's NICs end where those of its disks begin, which end with the bus.
const (
	mostNICs   = 4
	mostLayers = 23
	mostVCPUs  = 240
)

// List answers the templates of boots on this node.
func (s *Scheduler) List(context.Context) ([]*nodev1.TemplateInfo, error) {
	list, err := s.store().List()
	if err != nil {
		return nil, err
	}
	out := make([]*nodev1.TemplateInfo, 0, len(list))
	for _, t := range list {
		out = append(out, infoOf(t))
	}
	return out, nil
}

func infoOf(t template.Info) *nodev1.TemplateInfo {
	return &nodev1.TemplateInfo{
		Kind: nodev1.TemplateKind_TEMPLATE_KIND_BOOT, Name: t.Key, Vmm: t.Shape.VMM, Memory: t.Shape.Memory,
		Vcpus: uint32(t.Shape.VCPUs),
		Disks: uint32(len(t.Shape.Disks)), Nics: uint32(len(t.Shape.NICs)), Kernel: t.Kernel,
		CreatedUnixNano: t.Made.UnixNano(), UsedUnixNano: t.Used.UnixNano(), Bytes: t.Bytes,
	}
}

// Make has the template of a shape made now, however often VMs of that shape were started.
func (s *Scheduler) Make(ctx context.Context, req *nodev1.TemplateMakeRequest) (*nodev1.TemplateMakeResponse, error) {
	shape := req.GetBoot()
	if err := check(shape); err != nil {
		return nil, err
	}
	if s.config.Template.Boot.Mode != "on" {
		return nil, fmt.Errorf("template.boot.mode is off on this node, and no VM would use it; set it to on: %w",
			errdefs.ErrFailedPrecondition)
	}
	huge, err := rampool.Huge(s.config.RAMDir)
	if err != nil {
		return nil, err
	}
	if huge {
		return nil, fmt.Errorf("on huge pages every VM boots (ram_huge_pages): %w", errdefs.ErrNotImplemented)
	}
	if ms := shape.GetTimeoutMs(); ms > 0 {
		bounded, cancel := context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
		defer cancel()
		ctx = bounded
	}
	begun := time.Now()
	a, err := s.order(ctx, template.Order{
		VMM: shape.GetVmm(), Memory: shape.GetMemory(), VCPUs: int(shape.GetVcpus()), NICs: int(shape.GetNics()),
		Layers: int(shape.GetLayers()),
	})
	if err == nil {
		err = a.Err()
	}
	if err != nil {
		return nil, err
	}
	list, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range list {
		if t.GetName() == a.Key {
			return &nodev1.TemplateMakeResponse{Template: t, Existed: a.Existed,
				TookMs: uint64(time.Since(begun).Milliseconds())}, nil
		}
	}
	return nil, fmt.Errorf("template %s was made and went at once: template.boot.max or template.boot.max_size has no "+
		"room for it: %w", a.Key, errdefs.ErrResourceExhausted)
}

// check names what cannot be.
func check(s *nodev1.TemplateShape) error {
	invalid := func(field, format string, args ...any) error {
		return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
	}
	switch m := config.Size(s.GetMemory()); {
	case m != 0 && (m < config.MinVM || m > config.MaxVM):
		return invalid("memory", "%s is not between %s and %s", m, config.MinVM, config.MaxVM)
	case m%config.PageSize != 0:
		return invalid("memory", "%s is not a multiple of %s", m, config.PageSize)
	case s.GetVcpus() > mostVCPUs:
		return invalid("vcpus", "%d is more than %d", s.GetVcpus(), mostVCPUs)
	case s.GetNics() > mostNICs:
		return invalid("nics", "%d is more than %d", s.GetNics(), mostNICs)
	case s.GetLayers() > mostLayers:
		return invalid("layers", "%d is more than %d", s.GetLayers(), mostLayers)
	case s.GetVmm() != "" && s.GetVmm() != "qemu" && s.GetVmm() != "cloud-hypervisor":
		return invalid("vmm", "%q is not one of qemu, cloud-hypervisor", s.GetVmm())
	}
	return nil
}

// Remove deletes one. The next VMs of its shape boot, until it is made again.
func (s *Scheduler) Remove(_ context.Context, t *nodev1.TemplateInfo) error {
	return s.store().Remove(t.GetName())
}

// Push is refused. What a VM runs from its first instruction on comes from no other place. No
// node with another build, VMM, CPU or kernel could use it.
func (s *Scheduler) Push(context.Context, *nodev1.TemplateInfo, string) (*nodev1.TemplatePushed, error) {
	return nil, fmt.Errorf("a template of a boot is of this node's build, VMM, CPU and kernel, and stays on its disk; "+
		"order it on the other node (godwit template make --boot), or push a golden snapshot (--image): %w",
		errdefs.ErrNotImplemented)
}
