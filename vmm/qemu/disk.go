package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/qemu/qmp"
)

// AddDisk plugs disk in. As with a NIC, the disk counts as there unless QEMU refuses it.
func (m *Machine) AddDisk(ctx context.Context, disk vmm.Disk) error {
	if err := disk.CheckHot(slots); err != nil {
		return fmt.Errorf("add: %w", err)
	}
	if slices.Contains(m.Process().Disks, disk.ID) {
		return fmt.Errorf("add disk %s: %w", disk.ID, errdefs.ErrAlreadyExists)
	}
	m.setState(nil)
	m.noteDisk(disk.ID)
	err := m.plugInDisk(ctx, disk)
	if refused := (*qmp.Error)(nil); errors.As(err, &refused) {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		err = errors.Join(err, m.forgetDisk(undo, disk.ID))
	}
	if err != nil {
		return fmt.Errorf("add disk %s: %w", disk.ID, err)
	}
	return nil
}

// RemoveDisk asks the guest to release the disk and waits until it has. The VM must run.
func (m *Machine) RemoveDisk(ctx context.Context, id string) error {
	if !slices.Contains(m.Process().Disks, id) {
		return fmt.Errorf("remove disk %s: %w", id, errdefs.ErrNotFound)
	}
	if err := m.eject(ctx, hotID(id)); err != nil {
		return fmt.Errorf("remove disk %s: %w", id, err)
	}
	if err := m.forgetDisk(ctx, id); err != nil {
		return fmt.Errorf("remove disk %s: %w", id, err)
	}
	return nil
}

// DiskEjected implements vmm.Disks.
func (m *Machine) DiskEjected(ctx context.Context, id string) (bool, error) {
	if !slices.Contains(m.Process().Disks, id) {
		return true, nil
	}
	there, err := m.present(ctx, hotID(id))
	if err == nil && !there {
		err = m.forgetDisk(ctx, id)
	}
	if err != nil {
		return false, fmt.Errorf("look for disk %s: %w", id, err)
	}
	return !there, nil
}

func (m *Machine) noteDisk(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.info.Disks = append(m.info.Disks, id)
}

// plugInDisk gives QEMU the file in a set of its own, then a block node on the set, then a device
// on the node.
func (m *Machine) plugInDisk(ctx context.Context, disk vmm.Disk) error {
	driver, mode, err := access(disk)
	if err != nil {
		return err
	}
	file, err := withMode(disk.File, mode)
	if err != nil {
		return err
	}
	defer file.Close()
	set, err := m.addSet(ctx, hotID(disk.ID), file)
	if err != nil {
		return err
	}
	err = m.execute(ctx, "blockdev-add", map[string]any{
		"driver": driver, "node-name": diskID(disk.ID), "filename": "/dev/fdset/" + strconv.Itoa(set),
		"cache": map[string]any{"direct": false}, "discard": "unmap", "aio": "threads",
		"locking": "off", "drop-cache": false, "read-only": disk.ReadOnly, "auto-read-only": false,
	}, nil)
	if err != nil {
		return err
	}
	return m.execute(ctx, "device_add", map[string]any{
		"driver": "virtio-blk-pci", "id": hotID(disk.ID), "drive": diskID(disk.ID),
		"bus": hotBus, "addr": hotAddr(disk.Slot), "serial": disk.Serial, "disable-legacy": "on",
	}, nil)
}

func (m *Machine) addSet(ctx context.Context, name string, file *os.File) (set int, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var answer struct {
		Set int `json:"fdset-id"`
	}
	err = m.qmp.ExecuteWith(ctx, "add-fd", map[string]any{"opaque": name}, &answer, file)
	return answer.Set, err
}

// forgetDisk closes what QEMU still has of a disk that the guest has released, or never had.
func (m *Machine) forgetDisk(ctx context.Context, id string) error {
	if err := m.closeDisk(ctx, id); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.info.Disks = slices.DeleteFunc(m.info.Disks, func(s string) bool { return s == id })
	return nil
}

// releaseDisks closes disks that were there and are not: an earlier shim did not wait for the end
// of their eject. It closes those too of which QEMU has a descriptor and no device: an earlier shim died while it
// plugged them in, before it wrote them down.
func (m *Machine) releaseDisks(ctx context.Context, was []string) error {
	sets, err := m.listSets(ctx)
	if err != nil {
		return fmt.Errorf("look for disks that were not plugged in: %w", err)
	}
	for _, set := range sets {
		was = append(was, idsOf(set.names(), hotID(""))...)
	}
	slices.Sort(was)
	for _, id := range slices.Compact(was) {
		if slices.Contains(m.Process().Disks, id) {
			continue
		}
		if err := m.closeDisk(ctx, id); err != nil {
			return fmt.Errorf("release disk %s: %w", id, err)
		}
	}
	return nil
}

// The pauses between two tries to remove the node of a disk that was just ejected.
const (
	shortestPause = time.Millisecond
	longestPause  = 100 * time.Millisecond
)

// closeDisk removes the block node and the set of descriptors. A device that was just ejected
// has the node for a moment more.
func (m *Machine) closeDisk(ctx context.Context, id string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	pause := retry.Backoff{Min: shortestPause, Max: longestPause}
	for {
		there, err := m.hasNode(ctx, diskID(id))
		if err != nil {
			return err
		}
		if !there {
			return m.removeSet(ctx, hotID(id))
		}
		err = m.execute(ctx, "blockdev-del", map[string]any{"node-name": diskID(id)}, nil)
		if refused := (*qmp.Error)(nil); err != nil && !errors.As(err, &refused) {
			return err
		}
		if err == nil {
			continue
		}
		if pause.Wait(ctx); ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
	}
}

func (m *Machine) hasNode(ctx context.Context, name string) (bool, error) {
	var nodes []struct {
		Name string `json:"node-name"`
	}
	err := m.execute(ctx, "query-named-block-nodes", map[string]any{"flat": true}, &nodes)
	for _, node := range nodes {
		if node.Name == name {
			return true, err
		}
	}
	return false, err
}

// fdSet is a set of descriptors that QEMU has.
type fdSet struct {
	ID  int `json:"fdset-id"`
	FDs []struct {
		Opaque string `json:"opaque"`
	} `json:"fds"`
}

// names are those that its descriptors were given.
func (s fdSet) names() (names []string) {
	for _, fd := range s.FDs {
		names = append(names, fd.Opaque)
	}
	return names
}

func (m *Machine) listSets(ctx context.Context) (sets []fdSet, err error) {
	err = m.execute(ctx, "query-fdsets", nil, &sets)
	return sets, err
}

func (m *Machine) removeSet(ctx context.Context, name string) error {
	sets, err := m.listSets(ctx)
	if err != nil {
		return err
	}
	for _, set := range sets {
		if !slices.Contains(set.names(), name) {
			continue
		}
		if err := m.execute(ctx, "remove-fd", map[string]any{"fdset-id": set.ID}, nil); err != nil {
			return err
		}
	}
	return nil
}
