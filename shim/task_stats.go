package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/shim/cgroup"
)

// refreshStats asks the guest once more, where it runs: its figures stay when it does not.
func (t *Task) refreshStats(ctx context.Context) {
	if agent := answering(t.vm); agent != nil {
		t.stats.refresh(ctx, agent)
	}
}

// answering is the guest while it runs, also in the passes of a snapshot or of a move; nil: it does not.
func answering(vm *VM) Agent {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.state == Running || vm.traffic.flows() {
		return vm.agent
	}
	return nil
}

// guestStats are the guest's figures: the last ones where it does not run.
func (t *Task) guestStats(ctx context.Context) *agentv1.StatsResponse {
	vm := t.vm
	stopped := vm.vmmStopped()
	vm.mu.Lock()
	agent, runs := vm.agent, vm.state == Running && vm.agent != nil && !stopped
	vm.mu.Unlock()
	if !runs {
		return t.stats.cached()
	}
	return t.stats.get(ctx, vm.life, agent)
}

// metrics are of the type that the host's collectors understand. They work in every
// state from Created on, also after the end, when the figures are the last ones. Unavailable says
// that a figure cannot be read, or that the guest has never told its own.
func (t *Task) metrics(ctx context.Context) (_ any, err error) {
	vm := t.vm
	if vm.inState(Creating) {
		return nil, fmt.Errorf("stats of VM %s, which is being created: %w", vm.id, errdefs.ErrFailedPrecondition)
	}
	j := vm.journal.Load()
	if t.member == nil && vm.isPod() {
		all, err := vm.pod.figures(j)
		if err != nil {
			return nil, fmt.Errorf("stats of pod %s: %w", vm.id, err)
		}
		return all, nil
	}
	var g *agentv1.StatsResponse
	if j.Spec.HasAgent() {
		g = t.guestStats(ctx)
	} else {
		g, err = hostStats(j)
	}
	if err != nil {
		return nil, fmt.Errorf("stats of VM %s: %w", vm.id, err)
	}
	if g == nil && vm.inState(Running) {
		return nil, fmt.Errorf("stats of VM %s: its guest has not answered yet: %w", vm.id, errdefs.ErrUnavailable)
	}
	if g == nil { // no process of the container has run, or none was asked for figures
		g = &agentv1.StatsResponse{}
	}
	if t.member != nil { // what VM and shim cost the host is the sandbox's
		return figures(cgroup.Figures{Guest: g, Cost: cgroup.Cost{CPU: g.GetCpuUsageUsec()}, RAM: j.Spec.Memory}), nil
	}
	c, err := cgroup.CostOf(j.Private)
	if err != nil {
		return nil, fmt.Errorf("stats of VM %s: %w", vm.id, err)
	}
	used, err := vm.hostCPU()
	if err != nil {
		return nil, fmt.Errorf("stats of VM %s: %w", vm.id, err)
	}
	c.CPU = max(c.CPU, g.GetCpuUsageUsec(), used)
	return figures(cgroup.Figures{Guest: g, Cost: c, RAM: j.Spec.Memory}), nil
}

// figures are of the version of cgroups that the host has.
func figures(f cgroup.Figures) any {
	if cgroups.Mode() == cgroups.Unified {
		return f.V2()
	}
	return f.V1()
}

// procStats answers the fields of /proc/PID/stat after the name, the state first; none if the VMM
// does not live.
func (vm *VM) procStats() ([]string, error) {
	j := vm.journal.Load()
	if j.Process == nil {
		return nil, nil
	}
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(j.Process.PID), "stat"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at the VMM: %w: %w", errdefs.ErrUnavailable, err)
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 20 || fields[19] != strconv.FormatUint(j.Process.StartTime, 10) { // another process by now
		return nil, nil
	}
	return fields, nil
}

// vmmStopped reports a VMM that executes nothing because it was stopped by a signal. Of one that
// cannot be looked at the guest is asked, within its bound.
func (vm *VM) vmmStopped() bool {
	f, err := vm.procStats()
	return err == nil && len(f) > 0 && strings.EqualFold(f[0], "t")
}

// hostCPU is what the VMM itself has used, in microseconds, where no cgroup counts it.
func (vm *VM) hostCPU() (uint64, error) {
	f, err := vm.procStats()
	if err != nil || len(f) == 0 {
		return 0, err
	}
	return (cgroup.Number(f[11]) + cgroup.Number(f[12])) * 10_000, nil // USER_HZ is 100
}
