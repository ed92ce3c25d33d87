//go:build integration

package life

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/integration/harness"
)

// most is what a VM may cost its host in godwit's own processes at any load, in MiB. With 12 VMs a
// share of godwitd alone is 2.5. The goal, of 50 VMs, is 8 (docs/dev/bench.md).
const most = 12

// memory is what processes hold of a node, in MiB: a page that n of them have counts for each as
// 1/n (Pss).
type memory struct{ PerVM, Shim, Holder, Daemon, VMs float64 }

// TestFleetsMemory shows what godwit's own processes hold for each VM, shim, holder and its share
// of godwitd, while many run. GODWIT_PSS names a file for the figures.
func TestFleetsMemory(t *testing.T) {
	h := harness.New(t, harness.Options{Godwitd: true, Images: true, RAM: "8GiB", Config: startTimeout})
	n := h.Node(0)
	total, clients := loadSize()
	id := func(i int) string { return fmt.Sprintf("memory%d", i) }
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(clients)
	client := connect(t, n)
	for i := range total {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, 4*bound)
			defer cancel()
			task, err := create(ctx, client, id(i), 33, smallest)
			if err != nil {
				return fmt.Errorf("VM %d: %w", i, err)
			}
			return task.Start(ctx)
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	m, err := settled(n, float64(total))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", m)
	if m.PerVM > most {
		t.Errorf("%.1f MiB a VM, at most %d", m.PerVM, most)
	}
	if path := os.Getenv("GODWIT_PSS"); path != "" {
		if err := harness.WriteResult(path, m); err != nil {
			t.Error(err)
		}
	}
	for i := range total {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*bound)
			defer cancel()
			return remove(ctx, client, id(i), 33)
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// startTimeout of a host that has more VMs than it can run fast.
func startTimeout(*harness.Node) string {
	if harness.Nested() {
		return ""
	}
	return "timeouts.boot = \"15m\"\ntimeouts.ready = \"15m\"\n"
}

// settled weighs until the figure stops falling: a shim gives memory back after the Start that
// needed it.
func settled(n *harness.Node, vms float64) (memory, error) {
	for last := math.Inf(1); ; time.Sleep(time.Second) {
		m, err := measure(n, vms)
		if err != nil || m.PerVM > last*0.99 {
			return m, err
		}
		last = m.PerVM
	}
}

// measure looks at godwit's processes on a node.
func measure(n *harness.Node, vms float64) (m memory, err error) {
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", n.PID()))
	if err != nil {
		return m, err
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		return m, err
	}
	shims, holders := 0.0, 0.0
	for _, e := range all {
		if ns, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns/pid")); err != nil || ns != own {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := strings.Split(string(line), "\x00")
		program := filepath.Base(args[0])
		if err != nil || program != "containerd-shim-godwit-v1" && program != "godwitd" {
			continue
		}
		pss, err := pssOf(e.Name())
		if err != nil {
			return m, err
		}
		switch {
		case program == "godwitd":
			m.Daemon += pss
		case len(args) > 1 && strings.HasPrefix(args[1], "-"): // it serves a task
			m.Shim, shims = m.Shim+pss, shims+1
		default:
			m.Holder, holders = m.Holder+pss, holders+1
		}
	}
	if shims != vms || holders < vms || m.Daemon == 0 {
		return m, fmt.Errorf("%v shims, %v holders and godwitd with %.1f MiB, of %v VMs", shims, holders, m.Daemon, vms)
	}
	m.VMs, m.PerVM = vms, (m.Shim+m.Holder+m.Daemon)/vms
	return m, nil
}

func pssOf(pid string) (mib float64, err error) {
	data, err := os.ReadFile(filepath.Join("/proc", pid, "smaps_rollup"))
	if err != nil {
		return 0, err
	}
	_, rest, _ := bytes.Cut(data, []byte("\nPss:"))
	fields := strings.Fields(string(rest))
	if len(fields) == 0 {
		return 0, fmt.Errorf("process %s has no Pss", pid)
	}
	kib, err := strconv.ParseFloat(fields[0], 64)
	return kib / 1024, err
}
