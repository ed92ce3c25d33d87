package join

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/shim/statcache"
	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/cloudhypervisor"
	"godwit.dev/godwit/vmm/qemu"
)

// auto lets the host decide: Cloud Hypervisor where it runs, else QEMU.
const auto = "auto"

// VMMs are the names of those that this build knows.
func VMMs() []string { return []string{cloudhypervisor.Name, qemu.Name} }

// drivers are the VMMs that this build knows.
type drivers struct {
	kind  string // the configuration's
	table map[string]vmm.Driver

	mu     sync.Mutex
	chosen string // by auto, once
}

func newDrivers(cfg *config.Config) (*drivers, error) {
	remember := statcache.Cache{Path: cfg.FactsFile()}.Of
	q, err := qemu.New(qemu.Driver{
		Binary: cfg.VMM.QEMU, DataDir: cfg.VMM.DataDir, Accel: cfg.VMM.Accel, Log: slog.Default(), Remember: remember,
		AllowRoot: cfg.VMM.AllowRoot,
	})
	if err != nil {
		return nil, err
	}
	d := &drivers{kind: cfg.VMM.Kind, table: map[string]vmm.Driver{
		qemu.Name: q,
		cloudhypervisor.Name: cloudhypervisor.New(cloudhypervisor.Driver{
			Binary: cfg.VMM.CloudHypervisor, Log: slog.Default(), Remember: remember, AllowRoot: cfg.VMM.AllowRoot,
		}),
	}}
	if d.kind == "" {
		d.kind = auto
	}
	return d, nil
}

// pick answers the driver of that name, or the node's choice. A node that is configured
// for one VMM runs no VM of another, nor wakes one.
func (d *drivers) pick(ctx context.Context, name string) (vmm.Driver, error) {
	switch {
	case name == "" && d.kind == auto:
		name = d.best(ctx)
	case name == "":
		name = d.kind
	case d.kind != auto && d.kind != name:
		return nil, fmt.Errorf("the VM wants %s, this node runs %s: %w", name, d.kind, errdefs.ErrFailedPrecondition)
	}
	driver, ok := d.table[name]
	if !ok {
		return nil, fmt.Errorf("VMM %q, this build knows %s and %s: %w", name, cloudhypervisor.Name, qemu.Name,
			errdefs.ErrNotImplemented)
	}
	return driver, nil
}

func (d *drivers) best(ctx context.Context) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.chosen == "" {
		d.chosen = cloudhypervisor.Name
		if _, err := d.table[d.chosen].Probe(ctx); err != nil {
			slog.Debug("Cloud Hypervisor does not run here", "error", err)
			d.chosen = qemu.Name
		}
	}
	return d.chosen
}
