// Package join makes the host of a VM out of the real parts: the VMMs, the network, the
// cache of disks, the snapshot worker, the node's daemon.
package join

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/api/types"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/network"
	"godwit.dev/godwit/shim"
	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/memtrim"
	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/shim/program"
	"godwit.dev/godwit/shim/rampool"
	"godwit.dev/godwit/shim/rootfs"
	"godwit.dev/godwit/shim/sandboxprocess"
	"godwit.dev/godwit/shim/statcache"
	"godwit.dev/godwit/shim/template"
	"godwit.dev/godwit/shim/tracking"
	"godwit.dev/godwit/snapshot/cache"
	"godwit.dev/godwit/snapshot/worker"
	"godwit.dev/godwit/vmm"
)

// self is the very file that this shim runs: by its path another version may lie there
// after an upgrade, or nothing.
const self = "/proc/self/exe"

// Host is what cfg describes. It opens nothing and makes no call.
func Host(cfg *config.Config) (*shim.Host, error) {
	drivers, err := newDrivers(cfg)
	if err != nil {
		return nil, err
	}
	h := &shim.Host{
		Config: cfg, Driver: drivers.pick, Network: networks{}, Disks: &disks{cfg: cfg}, HostKernel: shim.HostKernel(),
		Localhost: network.ListenLocalhost,
		Pool:      rampool.Mount, Cgroup: cgroup.Dirs, TrimMemory: memtrim.Trim,
		Kernel: func() (spec.Kernel, error) { return shim.GuestKernel(cfg) },
		Dial: func(ctx context.Context, m vmm.Machine, console string, first shim.FirstCall) (shim.Agent, error) {
			opts := client.Options{
				BootTimeout: time.Duration(cfg.Timeouts.Boot), Console: console, Gone: m.Done(), Log: slog.Default(),
			}
			if first != nil {
				opts.First = func(ctx context.Context, a *client.Agent) error { return first(ctx, a) }
			}
			p := m.Process()
			if p.VSock {
				opts.Dial = client.VSock(client.VSockPort)
			}
			return client.Connect(ctx, p.Agent, opts)
		},
		Hold: func(ctx context.Context, ns sandboxprocess.Namespace, note func(proc.ID) error) error {
			return sandboxprocess.Start(ctx, self, ns, note)
		},
		Snapshots: func(cgroup []string) shim.Snapshots {
			return &worker.Client{Command: []string{self, program.Worker}, Cgroup: cgroup,
				Cache: cache.Open(cfg.PacksDir(), int64(cfg.Cache.Packs))}
		},
	}
	if cfg.Template.Boot.Mode == "on" {
		h.Templates = &template.Store{Dir: cfg.TemplatesDir()}
	}
	prober := tracking.Prober{Command: []string{self, tracking.Subcommand},
		Remember: statcache.Cache{Path: cfg.FactsFile()}.Of}
	h.Lazy = tracking.Lazy{Prober: prober}
	h.Tracking = func(ctx context.Context) tracking.Choice { return prober.Choose(ctx, cfg.Worker.Tracking) }
	daemon := orders{cfg.DaemonSocket()}
	h.Records, h.Orders, h.Pods, h.Unasked = record.Local(cfg.DaemonSocket()), daemon, daemon, !cfg.UsesRecords()
	return h, nil
}

// networks implements the shim's interfaces with package network.
type networks struct{}

func (networks) ForGuest(netns string) error { return network.ForGuest(netns) }

func (networks) Read(ctx context.Context, netns string) ([]network.Link, error) {
	return network.Read(ctx, netns)
}

func (networks) FindGateways(ctx context.Context, netns string, links []network.Link) ([]network.Link, error) {
	return network.FindGateways(ctx, netns, links)
}

func (networks) Attach(ctx context.Context, netns string, owner network.Owner, links []network.Link) (shim.Attachment,
	error) {
	a, err := network.Attach(ctx, netns, owner, links)
	if err != nil {
		return nil, err
	}
	return a, nil
}

func (networks) Open(ctx context.Context, netns string, links []network.Link) (shim.Attachment, error) {
	a, err := network.Open(ctx, netns, links)
	if err != nil {
		return nil, err
	}
	return a, nil
}

func (networks) Detach(ctx context.Context, netns string, links []network.Link) error {
	return network.Detach(ctx, netns, links)
}

func (networks) Leave(ctx context.Context, netns string, links []network.Link) error {
	return network.DetachMoved(ctx, netns, links)
}

// disks implements the shim's interface with package rootfs.
type disks struct{ cfg *config.Config }

func (d *disks) Prepare(ctx context.Context, req shim.DisksRequest) (*shim.DiskSet, error) {
	cache, err := rootfs.OpenCache(d.cfg.CacheDir(), int64(d.cfg.Cache.MaxSize))
	if err != nil {
		return nil, err
	}
	if set, err := d.left(req.Namespace, req.ID, req.Container, req.Mounts); set != nil || err != nil {
		return set, err
	}
	l, err := rootfs.Prepare(ctx, req.Mounts, rootfs.Paths{Cache: cache, Dir: req.Dir, WritableSize: req.WritableSize,
		Room: req.Room, Program: rootfs.Program(req.Program), Kept: d.kept(req.Namespace, req.ID)})
	if err != nil {
		return nil, err
	}
	set := &shim.DiskSet{Writable: "rw"}
	for i, disk := range l.Disks {
		id := fmt.Sprintf("layer%d", i)
		set.Layers = append(set.Layers, id)
		set.Disks = append(set.Disks, spec.Disk{
			ID: id, Serial: id, ReadOnly: true, Type: disk.Type, Size: disk.Size, Digest: disk.Digest,
		})
		set.Files = append(set.Files, journal.Disk{ID: id, Path: disk.Path})
	}
	set.Disks = append(set.Disks, spec.Disk{ID: "rw", Serial: "rw", Type: "ext4", Size: l.WritableSize})
	set.Files = append(set.Files, journal.Disk{ID: "rw", Path: l.Writable})
	return set, nil
}

func (d *disks) CarriesDisk(ctx context.Context, mounts []*types.Mount) (bool, error) {
	if len(mounts) == 0 {
		return false, nil // of a container made for a restore
	}
	cache, err := rootfs.OpenCache(d.cfg.CacheDir(), int64(d.cfg.Cache.MaxSize))
	if err != nil {
		return false, err
	}
	return cache.CarriesDisk(ctx, mounts)
}

func (d *disks) Link(ctx context.Context, digest, path string) error {
	cache, err := rootfs.OpenCache(d.cfg.CacheDir(), int64(d.cfg.Cache.MaxSize))
	if err != nil {
		return err
	}
	return cache.Link(ctx, digest, path)
}

func (d *disks) Keep(ctx context.Context, digest string, from io.Reader, path string) error {
	cache, err := rootfs.OpenCache(d.cfg.CacheDir(), int64(d.cfg.Cache.MaxSize))
	if err != nil {
		return err
	}
	return cache.Keep(ctx, digest, from, path)
}

func (d *disks) kept(namespace, id string) rootfs.Kept {
	return rootfs.Kept{Dir: d.cfg.DiskDir(namespace, id)}
}

func (d *disks) Forget(req shim.DisksRequest) error {
	if err := d.kept(req.Namespace, req.ID).Remove(); err != nil {
		return fmt.Errorf("remove stale writable disk: %w", err)
	}
	if err := rootfs.Note(req.Mounts, req.Dir, req.Container); err != nil {
		return err
	}
	path, err := rootfs.Writable(req.Mounts)
	if err != nil || path == "" {
		return nil // no task of ours has ever booted from such mounts
	}
	dir := filepath.Dir(path)
	for _, stale := range []string{path, filepath.Join(dir, rootfs.DiskName), filepath.Join(dir, rootfs.NVRAMName)} {
		if err := os.Remove(stale); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove stale writable disk: %w", err)
		}
	}
	return nil
}

func (d *disks) ForgetKept(namespace, id string) error { return d.kept(namespace, id).Remove() }

func (d *disks) Cleanup(_ context.Context, dir string) error {
	if err := rootfs.Release(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Clean(dir)); err != nil {
		return fmt.Errorf("remove disks: %w", err)
	}
	return nil
}
