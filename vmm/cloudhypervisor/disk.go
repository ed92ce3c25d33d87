package cloudhypervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/process"
)

// hotID has the slot in it: an adopted VMM tells its devices' ids alone.
func hotID(disk vmm.Disk) string { return fmt.Sprintf("hot-%d-%s", disk.Slot, disk.ID) }

// cutHot answers slot and caller's id of a device that hotID has named.
func cutHot(device string) (slot int, id string, ok bool) {
	rest, ok := strings.CutPrefix(device, "hot-")
	if !ok {
		return 0, "", false
	}
	number, id, ok := strings.Cut(rest, "-")
	slot, err := strconv.Atoi(number)
	return slot, id, ok && err == nil && slots.Hot(slot)
}

// shown is a file that the VMM is shown as the disk of a slot.
type shown struct {
	disk vmm.Disk
	path string   // by which the VMM opens it
	file *os.File // a mount of the disk, which the VMM's user may open
}

// shower lets a sealed process see files, at places of process.HotDir.
type shower interface {
	Show(place int, mount *os.File) error
	Hide(places ...int) error
}

// show prepares the file of a disk for the VMM's user.
func show(user process.User, disk vmm.Disk, confined bool) (shown, error) {
	if !confined { // it sees the host's files
		file, err := process.Dup(disk.File)
		return shown{disk, disk.File.Name(), file}, err
	}
	mount, err := user.Mount(disk.File, !disk.ReadOnly)
	return shown{disk, process.HotPath(place(disk.Slot)), mount}, err
}

// kept is what a sealed VMM keeps.
func (p *plan) kept() []string {
	if p.hot {
		return []string{"/dev", "/proc", process.HotDir}
	}
	return []string{"/dev", "/proc"}
}

func (m *Machine) showAll(files []shown) error {
	for _, s := range files {
		if !m.confined {
			continue
		}
		if err := m.files.Show(place(s.disk.Slot), s.file); err != nil {
			return err
		}
	}
	return nil
}

// AddDisk plugs disk in. As with a NIC, the disk counts as there unless the VMM refuses it.
func (m *Machine) AddDisk(ctx context.Context, disk vmm.Disk) error {
	if err := disk.CheckHot(slots); err != nil {
		return fmt.Errorf("add: %w", err)
	}
	if slices.Contains(m.Process().Disks, disk.ID) {
		return fmt.Errorf("add disk %s: %w", disk.ID, errdefs.ErrAlreadyExists)
	}
	err := m.change(ctx, func(_ context.Context, send sender) error {
		if err := m.checkSlot(disk.Slot); err != nil {
			return err
		}
		return m.plugInDisk(disk, send)
	})
	if err != nil {
		return fmt.Errorf("add disk %s: %w", disk.ID, err)
	}
	return nil
}

// checkSlot refuses a slot that has a disk: what the VMM is shown there would be covered, and hidden with the new one.
func (m *Machine) checkSlot(slot int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, used := range m.hot {
		if used == slot {
			return fmt.Errorf("slot %d has disk %s: %w", slot, id, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

func (m *Machine) plugInDisk(disk vmm.Disk, send sender) error {
	user, err := m.user()
	if err != nil {
		return err
	}
	s, err := show(user, disk, m.confined)
	if err != nil {
		return err
	}
	defer s.file.Close()
	if err := m.showAll([]shown{s}); err != nil {
		return err
	}
	sent := false
	err = send(func(ctx context.Context) error {
		sent = true
		m.noteDisk(disk.ID, disk.Slot)
		err := m.api.addDisk(ctx, diskOf(disk, s.path))
		if isRefusal(err) {
			err = errors.Join(err, m.forgetDisk(disk.ID))
		}
		return err
	})
	if !sent {
		err = errors.Join(err, m.hide(disk.Slot))
	}
	return err
}

// hide takes the file of a slot from the VMM.
func (m *Machine) hide(slot int) error {
	if !m.confined {
		return nil
	}
	return m.files.Hide(place(slot))
}

// RemoveDisk asks the guest to release the disk and waits until it has. The VM must run.
func (m *Machine) RemoveDisk(ctx context.Context, id string) error {
	device, ok := m.hotDevice(id)
	if !ok {
		return fmt.Errorf("remove disk %s: %w", id, errdefs.ErrNotFound)
	}
	err := m.eject(ctx, device)
	if err == nil {
		err = m.forgetDisk(id)
	}
	if err != nil {
		return fmt.Errorf("remove disk %s: %w", id, err)
	}
	return nil
}

// DiskEjected implements vmm.Disks.
func (m *Machine) DiskEjected(ctx context.Context, id string) (bool, error) {
	device, ok := m.hotDevice(id)
	if !ok {
		return true, nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	info, err := m.api.info(ctx)
	if err != nil {
		return false, fmt.Errorf("look for disk %s: %w", id, err)
	}
	if plugged(info, device) {
		return false, nil
	}
	return true, m.forgetDisk(id)
}

// hotDevice is the VMM's id of a disk that was plugged in.
func (m *Machine) hotDevice(id string) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	slot, ok := m.hot[id]
	return hotID(vmm.Disk{ID: id, Slot: slot}), ok
}

func (m *Machine) noteDisk(id string, slot int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hot[id] = slot
	m.info.Disks = append(m.info.Disks, id)
}

// noteHot notes a device that the VMM tells of, if it is a disk that was plugged in.
func (m *Machine) noteHot(device string) {
	if slot, id, ok := cutHot(device); ok {
		m.noteDisk(id, slot)
	}
}

// forgetDisk hides the file of a disk that the guest has released, or never had.
func (m *Machine) forgetDisk(id string) error {
	m.mu.Lock()
	slot := m.hot[id]
	m.mu.Unlock()
	if err := m.hide(slot); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.hot, id)
	m.info.Disks = slices.DeleteFunc(m.info.Disks, func(s string) bool { return s == id })
	return nil
}

// hideUnused hides what an adopted VMM was shown and has no disk of: an earlier shim died before
// it asked for the disk, or did not wait for the end of the eject.
func (m *Machine) hideUnused() error {
	if !m.confined {
		return nil
	}
	used := map[int]bool{}
	for _, slot := range m.hot {
		used[slot] = true
	}
	var unused []int
	for slot := FirstHotSlot; slot <= LastHotSlot; slot++ {
		if !used[slot] {
			unused = append(unused, place(slot))
		}
	}
	return m.files.Hide(unused...)
}

// user that the VMM runs as: the owner of its directory.
func (m *Machine) user() (process.User, error) {
	work, err := os.Open(workDir(m.Process().Dir))
	if err != nil {
		return process.User{}, err
	}
	defer work.Close()
	return process.Owner(work, true)
}
