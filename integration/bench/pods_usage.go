package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Probes whose CPU time is measured: as ten containers with a probe each second.
const (
	probeEvery = 100 * time.Millisecond
	probeCount = 50
)

// podPrograms are the pids of the shim and of the processes that stand for containers.
func (b *bench) podPrograms() (pids []int, err error) {
	foreign := map[string]bool{}
	err = programsOf(b.podNode.Node, foreign, func(pid int, args []string) {
		if filepath.Base(args[0]) == "containerd-shim-godwit-v1" {
			pids = append(pids, pid)
		}
	})
	if err == nil && len(pids) == 0 {
		err = errors.New("find the shim of the pod: none runs")
	}
	return pids, err
}

// podMemory notes what the pod's shim and its processes have.
func (b *bench) podMemory() error {
	pids, err := b.podPrograms()
	if err != nil {
		return err
	}
	sum := 0.0
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return fmt.Errorf("read memory of process %d: %w", pid, err)
		}
		sum += field(data, "Pss:")
	}
	b.note("shim_pss_mib", sum/1024)
	return nil
}

// probeCPU notes the CPU time of shim and godwitd while probes run. A busy machine may run fewer than ten a second: the
// figure is for ten.
func (b *bench) probeCPU(ctx context.Context, target string) error {
	pids, err := b.podPrograms()
	if err != nil {
		return err
	}
	pids = append(pids, b.podNode.Godwitd.PID())
	used := func() (sum float64) {
		for _, pid := range pids {
			s, ok := cpuSeconds(pid)
			if !ok {
				return nan
			}
			sum += s
		}
		return sum
	}
	before := used()
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for range probeCount {
		if _, err := b.podNode.call(ctx, "exec", "--sync", target, "/bin/true"); err != nil {
			return err
		}
		<-tick.C
	}
	perProbe := (used() - before) / probeCount
	b.note("probe_cpu", 100*perProbe*float64(time.Second/probeEvery))
	return nil
}
