package bundle

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/spec"
)

// ReadUpdate reads the resources of an Update and answers what changes in the container
// of a VM, nil if nothing does. A client may send everything that the container was made
// with along with what it changes: what is as before is not looked at. What a VM that
// exists cannot have is refused by the name of its field.
func (b *Bundle) ReadUpdate(data []byte, annotations map[string]string, vm *spec.Spec) (*specs.LinuxResources, error) {
	for name := range annotations {
		if strings.HasPrefix(name, Prefix) {
			return nil, refused("annotation "+name, "a VM has its size from its Create on; create the container anew")
		}
	}
	if len(data) == 0 {
		return nil, nil
	}
	r := new(specs.LinuxResources)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("read resources: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	now := b.resourcesOf(vm)
	dropKept(r, now)
	if err := refuseResources(&specs.Spec{Linux: &specs.Linux{Resources: r}}); err != nil {
		return nil, err
	}
	merged := MergeResources(now, r)
	if r.Memory != nil {
		if err := memoryFits(r.Memory, now.Memory, vm); err != nil {
			return nil, err
		}
		r.Memory = merged.Memory
	}
	if r.CPU != nil {
		if err := b.cpuFits(r.CPU, merged.CPU, vm); err != nil {
			return nil, err
		}
		r.CPU = merged.CPU
		r.CPU.Cpus, r.CPU.Mems = "", ""
	}
	if reflect.DeepEqual(*r, specs.LinuxResources{}) {
		return nil, nil
	}
	return r, nil
}

// resourcesOf the task in its VM; of a pod none.
func (b *Bundle) resourcesOf(vm *spec.Spec) *specs.LinuxResources {
	c := vm.Container
	if b.Member != nil && vm.Pod != nil {
		c = b.container()
		if m := vm.Pod.Member(b.Member.Container.Guest); m != nil {
			c = &m.Container
		}
	}
	if c != nil && c.OCI != nil && c.OCI.Linux != nil && c.OCI.Linux.Resources != nil {
		return c.OCI.Linux.Resources
	}
	return new(specs.LinuxResources)
}

// dropKept removes what says the same as before, and the rules for the host's devices.
func dropKept(r, now *specs.LinuxResources) {
	r.Devices = nil
	if reflect.DeepEqual(r.Memory, now.Memory) {
		r.Memory = nil
	}
	if reflect.DeepEqual(r.Pids, now.Pids) {
		r.Pids = nil
	}
	if reflect.DeepEqual(r.BlockIO, now.BlockIO) {
		r.BlockIO = nil
	}
	for key, value := range now.Unified {
		if r.Unified[key] == value {
			delete(r.Unified, key)
		}
	}
	if len(r.Unified) == 0 {
		r.Unified = nil
	}
}

func memoryFits(m, now *specs.LinuxMemory, vm *spec.Spec) error {
	if now == nil {
		now = new(specs.LinuxMemory)
	}
	for _, f := range []struct {
		set   bool
		field string
	}{
		{m.Swappiness != nil && !reflect.DeepEqual(m.Swappiness, now.Swappiness), "swappiness"},
		{m.DisableOOMKiller != nil && *m.DisableOOMKiller, "disableOOMKiller"},
	} {
		if f.set {
			return refused("linux.resources.memory."+f.field, "the guest has cgroup v2, which knows none")
		}
	}
	if m.Limit == nil || *m.Limit <= 0 || reflect.DeepEqual(m.Limit, now.Limit) {
		return nil
	}
	if fits := vm.Memory - min(guestOverhead, vm.Memory); uint64(*m.Limit) > fits {
		return fmt.Errorf("linux.resources.memory.limit: %d bytes do not fit the VM, whose RAM of %d bytes does not grow: "+
			"at most %d; create the container anew, with %smemory if it shall have room: %w",
			*m.Limit, vm.Memory, fits, Prefix, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (b *Bundle) cpuFits(c, merged *specs.LinuxCPU, vm *spec.Spec) error {
	if c.Cpus != "" && c.Cpus != b.CPUs || c.Mems != "" && c.Mems != b.Mems {
		reason := "a VM keeps the host's CPUs and memory nodes of its Create: leave them out, or create the container anew"
		if b.Member != nil {
			reason = "they number the host's CPUs and memory nodes, and all containers of a pod share one VM: leave them out"
		}
		return refused("linux.resources.cpu.cpus and mems", reason)
	}
	now := b.resourcesOf(vm).CPU
	if now != nil && reflect.DeepEqual(merged.Quota, now.Quota) && reflect.DeepEqual(merged.Period, now.Period) {
		return nil
	}
	n, err := vcpuCount(0, &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{CPU: merged}}})
	if err == nil && n > vm.VCPUs {
		err = fmt.Errorf("linux.resources.cpu.quota: it asks for %d CPUs, the VM has %d and gets no more; create the "+
			"container anew, with %svcpus if it shall have room: %w",
			n, vm.VCPUs, Prefix, errdefs.ErrInvalidArgument)
	}
	return err
}

// MergeResources answers base with what change sets. Neither is changed.
func MergeResources(base, change *specs.LinuxResources) *specs.LinuxResources {
	out := new(specs.LinuxResources)
	if base != nil {
		*out = *base
	}
	out.Memory = mergeFields(out.Memory, change.Memory)
	out.CPU = mergeFields(out.CPU, change.CPU)
	out.Pids = mergeFields(out.Pids, change.Pids)
	if len(change.Unified) > 0 {
		out.Unified = maps.Clone(out.Unified)
		if out.Unified == nil {
			out.Unified = make(map[string]string)
		}
		maps.Copy(out.Unified, change.Unified)
	}
	return out
}

// mergeFields answers a copy of base with every field that change sets.
func mergeFields[T any](base, change *T) *T {
	if base == nil && change == nil {
		return nil
	}
	out := new(T)
	if base != nil {
		*out = *base
	}
	if change != nil {
		to, from := reflect.ValueOf(out).Elem(), reflect.ValueOf(change).Elem()
		for i := range from.NumField() {
			if !from.Field(i).IsZero() {
				to.Field(i).Set(from.Field(i))
			}
		}
	}
	return out
}
