package client

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Stats are the figures of a VM at one moment. Sizes are bytes.
type Stats struct {
	VM     string    `json:"vm"` // NAMESPACE/ID
	Time   time.Time `json:"time"`
	CPU    uint64    `json:"cpuUsec"`     // used since its start, by guest and VMM, microseconds
	Memory uint64    `json:"memory"`      // of the container, and of what runs the VM
	Limit  uint64    `json:"memoryLimit"` // the container's, else the VM's RAM
	RAM    uint64    `json:"ram"`         // of the VM
	// Of RAM, what the host's memory holds: the rest is free in the balloon, or was never used.
	Resident uint64  `json:"resident"`
	Pids     uint64  `json:"pids"`                           // processes and threads of the container
	Read     uint64  `json:"blockReadBytes"`                 // from disks
	Written  uint64  `json:"blockWriteBytes"`                // to disks
	Received *uint64 `json:"networkReceivedBytes,omitempty"` // nil: not known
	Sent     *uint64 `json:"networkSentBytes,omitempty"`
}

// Running lists the VMs of this node that run in the client's namespace, by id.
func (c *Client) Running(ctx context.Context) ([]*nodev1.VM, error) {
	all, err := c.containers(ctx, c.namespace)
	if err != nil {
		return nil, err
	}
	var vms []*nodev1.VM
	for _, container := range all {
		if container.isVM() && c.alive(within(ctx, container.VM), container.task) {
			vms = append(vms, container.VM)
		}
	}
	pods, err := c.sandboxes(ctx, c.namespace)
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		// One whose shim does not answer may run. That is told when its figures are asked for.
		if status, err := c.sandboxRuns(ctx, pod); err != nil || status != nil {
			vms = append(vms, pod.VM)
		}
	}
	slices.SortFunc(vms, func(a, b *nodev1.VM) int { return strings.Compare(a.GetId(), b.GetId()) })
	return vms, nil
}

// Stats takes the figures of a VM that runs on this node.
func (c *Client) Stats(ctx context.Context, vm *nodev1.VM) (*Stats, error) {
	s := &Stats{VM: key(vm), Time: time.Now()}
	t, err := c.Task(ctx, vm)
	if err != nil {
		if found, failed := c.sandboxStats(ctx, vm, s); failed != nil {
			return nil, failed
		} else if !found {
			return nil, err
		}
	} else if err := c.taskStats(ctx, t, s); err != nil {
		return nil, err
	}
	if info, _, err := c.listed(ctx, vm); err == nil {
		s.RAM, s.Resident = info.GetMemory(), info.GetResident()
	}
	return s, nil
}

func (c *Client) taskStats(ctx context.Context, t *Task, s *Stats) error {
	metric, err := t.Task.Metrics(within(ctx, t.VM))
	if err != nil {
		return fmt.Errorf("ask for the figures of VM %s: %w", c.name(t.VM), err)
	}
	s.network(t.Task.Pid())
	return s.read(metric)
}

// network notes the traffic in the network namespace of a process, if it can be read.
func (s *Stats) network(pid uint32) {
	if in, out, err := traffic(pid); err == nil {
		s.Received, s.Sent = &in, &out
	}
}

// read takes what a host with cgroups of either version is told.
func (s *Stats) read(metric *types.Metric) error {
	data, err := typeurl.UnmarshalAny(metric.GetData())
	if err != nil {
		return fmt.Errorf("read the figures of VM %s: %w: %w", s.VM, err, errdefs.ErrNotImplemented)
	}
	switch m := data.(type) {
	case *v1.Metrics:
		s.CPU = m.GetCPU().GetUsage().GetTotal() / 1000 // it is in nanoseconds
		s.Memory, s.Limit = m.GetMemory().GetUsage().GetUsage(), m.GetMemory().GetUsage().GetLimit()
		s.Pids = m.GetPids().GetCurrent()
		for _, e := range m.GetBlkio().GetIoServiceBytesRecursive() {
			switch e.GetOp() {
			case "Read":
				s.Read += e.GetValue()
			case "Write":
				s.Written += e.GetValue()
			}
		}
	case *v2.Metrics:
		s.CPU = m.GetCPU().GetUsageUsec()
		s.Memory, s.Limit, s.Pids = m.GetMemory().GetUsage(), m.GetMemory().GetUsageLimit(), m.GetPids().GetCurrent()
		for _, e := range m.GetIo().GetUsage() {
			s.Read, s.Written = s.Read+e.GetRbytes(), s.Written+e.GetWbytes()
		}
	default:
		return fmt.Errorf("the figures of VM %s are of type %T, which is not known: %w", s.VM, data,
			errdefs.ErrNotImplemented)
	}
	return nil
}

// traffic is what has come into and gone out of the network namespace of a process of this host (proc(5), net/dev), by
// its interfaces eth*: a VM's own tap in it counts the same bytes again.
func traffic(pid uint32) (in, out uint64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", pid))
	if err != nil {
		return 0, 0, err
	}
	const received, sent = 0, 8
	for line := range strings.Lines(string(data)) {
		name, rest, found := strings.Cut(strings.TrimSpace(line), ":")
		f := strings.Fields(rest)
		if !found || !strings.HasPrefix(name, "eth") || len(f) <= sent {
			continue
		}
		r, err1 := strconv.ParseUint(f[received], 10, 64)
		s, err2 := strconv.ParseUint(f[sent], 10, 64)
		if err1 != nil || err2 != nil {
			return 0, 0, fmt.Errorf("read the traffic of %s: %q: %w", name, rest, errdefs.ErrDataLoss)
		}
		in, out = in+r, out+s
	}
	return in, out, nil
}
