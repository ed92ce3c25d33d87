package bundle

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/spec"
)

// NodeDevice is a block device of the node that a container of a pod has.
type NodeDevice struct {
	ID       string // Disk.ID: made of its numbers, which no other device has
	Path     string // of the node
	Size     int64
	ReadOnly bool
}

// takeBlockDevices takes the block devices out of oci: a pod has them as disks. The others are refused, as is a
// container that is to have all devices of the node.
func takeBlockDevices(oci *specs.Spec) (block []specs.LinuxDevice) {
	if oci.Linux == nil {
		return nil
	}
	var others []specs.LinuxDevice
	for _, d := range oci.Linux.Devices {
		if d.Type == "b" {
			block = append(block, d)
		} else {
			others = append(others, d)
		}
	}
	oci.Linux.Devices = others
	return block
}

// readDevices finds the block devices on the node.
func (m *Member) readDevices(devices []specs.LinuxDevice, r *specs.LinuxResources) error {
	for _, d := range devices {
		found, err := findDevice(d.Major, d.Minor)
		if err == nil {
			found.ReadOnly, err = onlyRead(d, r)
		}
		if err != nil {
			return fmt.Errorf("linux.devices %s: %w", d.Path, err)
		}
		m.Devices = append(m.Devices, found)
		m.Container.Devices = append(m.Container.Devices, deviceOf(d, found.ID))
	}
	return nil
}

func deviceOf(d specs.LinuxDevice, id string) spec.Device {
	to := spec.Device{Disk: id, Path: filepath.Clean(d.Path), Mode: 0o660}
	if d.FileMode != nil {
		to.Mode = uint32(d.FileMode.Perm())
	}
	if d.UID != nil {
		to.UID = *d.UID
	}
	if d.GID != nil {
		to.GID = *d.GID
	}
	return to
}

// onlyRead answers what the cgroup's rules let a container do with a device.
func onlyRead(d specs.LinuxDevice, r *specs.LinuxResources) (bool, error) {
	access := ""
	if r != nil {
		for _, rule := range r.Devices { // a later one counts more
			if !ruleFor(rule, d) {
				continue
			}
			access = ""
			if rule.Allow {
				access = rule.Access
			}
		}
	}
	if !strings.Contains(access, "r") {
		return false, fmt.Errorf("no rule of linux.resources.devices lets the container read it: give it permission r or "+
			"rw: %w", errdefs.ErrInvalidArgument)
	}
	return !strings.Contains(access, "w"), nil
}

func ruleFor(rule specs.LinuxDeviceCgroup, d specs.LinuxDevice) bool {
	is := func(number *int64, want int64) bool { return number == nil || *number == -1 || *number == want }
	return slices.Contains([]string{"", "a", d.Type}, rule.Type) && is(rule.Major, d.Major) && is(rule.Minor, d.Minor)
}

// findDevice finds the node's device of that number by what the kernel says its name is.
func findDevice(major, minor int64) (d NodeDevice, err error) {
	number := fmt.Sprintf("%d:%d", major, minor)
	data, err := os.ReadFile(filepath.Join("/sys/dev/block", number, "uevent"))
	if errors.Is(err, fs.ErrNotExist) {
		return d, fmt.Errorf("the node has no block device %s: %w", number, errdefs.ErrNotFound)
	}
	if err != nil {
		return d, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "DEVNAME="); ok {
			d.Path = filepath.Join("/dev", name)
		}
	}
	d.ID = fmt.Sprintf("dev-%d-%d", major, minor)
	return d, d.measure(unix.Mkdev(uint32(major), uint32(minor)))
}

// deviceAt finds the block device that path names.
func deviceAt(path string) (d NodeDevice, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return d, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return d, fmt.Errorf("%s is not a block device: %w", path, errdefs.ErrInvalidArgument)
	}
	return findDevice(int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev)))
}

func (d *NodeDevice) measure(number uint64) error {
	f, err := os.Open(d.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != number {
		return fmt.Errorf("%s is another device than %d:%d: %w", d.Path, unix.Major(number), unix.Minor(number),
			errdefs.ErrFailedPrecondition)
	}
	// A device without a medium has size 0.
	size, err := f.Seek(0, 2)
	if err == nil && size == 0 {
		err = fmt.Errorf("%s has no content: %w", d.Path, errdefs.ErrFailedPrecondition)
	}
	d.Size = size
	return err
}

// AnyDevice reports whether no rule for block devices is made for a container in the guest: one that may
// administer the guest could remove the rule.
func AnyDevice(p *specs.Process) bool {
	return p != nil && p.Capabilities != nil && slices.Contains(p.Capabilities.Bounding, "CAP_SYS_ADMIN")
}

// Disk is the Spec's for the device.
func (d NodeDevice) Disk(filesystem string) spec.Disk {
	return spec.Disk{ID: d.ID, Serial: d.ID, ReadOnly: d.ReadOnly, Type: filesystem, Size: d.Size, Node: true}
}
