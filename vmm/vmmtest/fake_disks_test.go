package vmmtest

import (
	"context"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
)

// fakeHotSlot is the one slot of the fake that takes a disk while the VM runs.
const fakeHotSlot = 32

// diskTexts is what the guest says of its disks.
func (v *fakeVM) diskTexts() string {
	if v.cfg.Incoming && v.d.wrong == "disk is lost in a restore" {
		return ""
	}
	said := ""
	for _, disk := range v.disks {
		line := make([]byte, 64)
		disk.File.ReadAt(line, 0)
		text, _, _ := strings.Cut(string(line), "\n")
		if before, ok := v.texts[disk.Serial]; ok && v.d.wrong == "disk of before is read" {
			text = before
		}
		v.texts[disk.Serial] = text
		said += disk.Serial + "=" + text + ","
	}
	return said
}

func (v *fakeVM) AddDisk(_ context.Context, disk vmm.Disk) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case disk.Slot != fakeHotSlot && v.d.wrong != "any slot takes a disk":
		return errdefs.ErrInvalidArgument
	case v.d.wrong == "disk is lost after a restore" && v.cfg.Incoming:
		return nil
	case len(v.disks) > 0 && disk.ID == v.disks[0].ID:
		return errdefs.ErrAlreadyExists
	case len(v.disks) > 0 && v.d.wrong == "a refusal takes the disk that is there":
		v.disks = nil
		return errdefs.ErrFailedPrecondition
	case len(v.disks) > 0 && v.d.wrong != "a used slot takes a disk":
		return errdefs.ErrFailedPrecondition
	}
	v.disks = []vmm.Disk{disk}
	return nil
}

func (v *fakeVM) RemoveDisk(_ context.Context, id string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.disks) == 0 || v.disks[0].ID != id {
		if v.d.wrong == "unknown disk passes" {
			return nil
		}
		return errdefs.ErrNotFound
	}
	if v.d.wrong != "disk is not removed" && (v.d.wrong != "disk stays after a restore" || !v.cfg.Incoming) {
		v.disks = nil
	}
	return nil
}

func (v *fakeVM) DiskEjected(context.Context, string) (bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.disks) == 0, nil
}
