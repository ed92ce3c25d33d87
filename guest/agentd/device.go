package agentd

import (
	"context"
	"fmt"
	"path/filepath"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/stage"
	"godwit.dev/godwit/internal/bpf"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// findDevices finds the disks that a container has as block devices, and lets its cgroup open no others.
func findDevices(ctx context.Context, c *container, o *order) (nodes []stage.Device, err error) {
	var rules []bpf.Device
	for _, d := range o.devices {
		if !filepath.IsAbs(d.Path) || d.Mode&^0o777 != 0 {
			return nil, fmt.Errorf("device %q: mode %o, or not an absolute path: %w", d.Path, d.Mode,
				errdefs.ErrInvalidArgument)
		}
		path, err := awaitDisk(ctx, d.Serial)
		if err != nil {
			return nil, fmt.Errorf("device %s: %w", d.Path, err)
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return nil, fmt.Errorf("device %s: stat %s: %w", d.Path, path, err)
		}
		rules = append(rules, bpf.Device{Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev), ReadOnly: d.ReadOnly})
		nodes = append(nodes, stage.Device{Path: d.Path, Number: st.Rdev, Mode: d.Mode, UID: d.Uid, GID: d.Gid})
	}
	if o.openDevices {
		return nodes, nil
	}
	return nodes, bpf.AllowBlockDevices(string(c.cgroup), rules)
}

// deviceDisks are the disks of devices, as those of a container.
func deviceDisks(devices []*agentv1.Device) (disks []*agentv1.Disk) {
	for _, d := range devices {
		disks = append(disks, &agentv1.Disk{Serial: d.Serial, ReadOnly: d.ReadOnly})
	}
	return disks
}
