package vmmtest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
)

// hotID is the id and the serial of the disk that the clauses plug in.
const hotID = "hot0"

// hotDisk makes a read-only disk whose first line is text. The guest says serial and text of each
// disk but the first.
func (v *vm) hotDisk(b *bench, text string) (vmm.Disk, error) {
	file, err := v.file(fmt.Sprintf("hot%d", len(v.files)), 1<<20)
	if err != nil {
		return vmm.Disk{}, err
	}
	if _, err := file.WriteAt([]byte(text+"\n"), 0); err != nil {
		return vmm.Disk{}, err
	}
	return vmm.Disk{ID: hotID, Serial: hotID, Slot: b.env.HotSlot, File: file, ReadOnly: true}, nil
}

// diskSeen waits until the guest reads text from the disk; empty: until it has no such disk.
func (v *vm) diskSeen(ctx context.Context, text string) error {
	_, err := v.guest.await(ctx, func(t tick) bool {
		if text == "" {
			return !strings.Contains(t.Devices, hotID+"=")
		}
		return strings.Contains(t.Devices, hotID+"="+text+",")
	})
	if err != nil {
		return fmt.Errorf("disk with %q: %w", text, err)
	}
	if got := slices.Contains(v.Process().Disks, hotID); got != (text != "") {
		return fmt.Errorf("disk in Process: got %v, want %v", got, text != "")
	}
	if gone, err := v.DiskEjected(ctx, hotID); err != nil || gone != (text == "") {
		return fmt.Errorf("disk ejected: got %v, %v, want %v", gone, err, text == "")
	}
	return nil
}

func withHotSlots(v *vm) error {
	v.cfg.HotDisks = true
	return nil
}

// disks plugs two disks after each other into one slot: what was left over of the first shows in
// the second.
func disks(ctx context.Context, b *bench) error {
	v, err := b.boot(ctx, withHotSlots)
	if err != nil {
		return err
	}
	for _, text := range []string{"first", "second"} {
		disk, err := v.hotDisk(b, text)
		if err != nil {
			return err
		}
		if err := v.AddDisk(ctx, disk); err != nil {
			return err
		}
		if err := v.diskSeen(ctx, text); err != nil {
			return err
		}
		if err := v.AddDisk(ctx, disk); !errdefs.IsAlreadyExists(err) {
			return fmt.Errorf("add of a disk that is there: got %v, want AlreadyExists", err)
		}
		if err := v.RemoveDisk(ctx, disk.ID); err != nil {
			return err
		}
		if err := v.diskSeen(ctx, ""); err != nil {
			return err
		}
	}
	return nil
}

// diskMoves saves a VM with a disk that was plugged in, goes on elsewhere, and ejects it there.
func diskMoves(ctx context.Context, b *bench) error {
	v, err := b.boot(ctx, withHotSlots)
	if err != nil {
		return err
	}
	disk, err := v.hotDisk(b, "moved")
	if err != nil {
		return err
	}
	if err := v.AddDisk(ctx, disk); err != nil {
		return err
	}
	if err := v.diskSeen(ctx, "moved"); err != nil {
		return err
	}
	w, at, err := b.move(ctx, v, func(w *vm) error {
		other, err := w.hotDisk(b, "moved")
		w.cfg.HotDisks, w.cfg.Disks = true, append(w.cfg.Disks, other)
		return err
	})
	if err != nil {
		return err
	}
	if err := w.Resume(ctx); err != nil {
		return err
	}
	if err := continues(ctx, w, at); err != nil {
		return err
	}
	if err := w.diskSeen(ctx, "moved"); err != nil {
		return err
	}
	if err := w.RemoveDisk(ctx, hotID); err != nil {
		return err
	}
	return w.diskSeen(ctx, "")
}

// diskAfterRestore plugs a disk into a VM that was restored and does not run yet, as a copy of a
// template does.
func diskAfterRestore(ctx context.Context, b *bench) error {
	v, err := b.boot(ctx, withHotSlots)
	if err != nil {
		return err
	}
	w, at, err := b.move(ctx, v, withHotSlots)
	if err != nil {
		return err
	}
	disk, err := w.hotDisk(b, "later")
	if err != nil {
		return err
	}
	if err := w.AddDisk(ctx, disk); err != nil {
		return err
	}
	if err := w.Resume(ctx); err != nil {
		return err
	}
	if err := w.diskSeen(ctx, "later"); err != nil {
		return err
	}
	return continues(ctx, w, at)
}

func unknownDisk(ctx context.Context, b *bench) error {
	v, err := b.start(ctx, withHotSlots)
	if err != nil {
		return err
	}
	if err := v.Resume(ctx); err != nil {
		return err
	}
	if err := v.RemoveDisk(ctx, hotID); !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove of an unknown disk: got %v, want NotFound", err)
	}
	disk, err := v.hotDisk(b, "")
	if err != nil {
		return err
	}
	disk.Slot = b.env.DiskSlot
	if err := v.AddDisk(ctx, disk); !errdefs.IsInvalidArgument(err) {
		return fmt.Errorf("add of a disk to a slot that takes none: got %v, want InvalidArgument", err)
	}
	return nil
}

// usedSlot plugs a second disk into a slot: it is refused, and the first one stays as it was.
func usedSlot(ctx context.Context, b *bench) error {
	v, err := b.boot(ctx, withHotSlots)
	if err != nil {
		return err
	}
	disk, err := v.hotDisk(b, "first")
	if err != nil {
		return err
	}
	if err := v.AddDisk(ctx, disk); err != nil {
		return err
	}
	other, err := v.hotDisk(b, "second")
	if err != nil {
		return err
	}
	other.ID, other.Serial = "hot1", "hot1"
	if err := v.AddDisk(ctx, other); !errdefs.IsFailedPrecondition(err) {
		return fmt.Errorf("add of a disk to a slot that has one: got %v, want FailedPrecondition", err)
	}
	if err := v.diskSeen(ctx, "first"); err != nil {
		return err
	}
	if got := v.Process().Disks; !slices.Equal(got, []string{hotID}) {
		return fmt.Errorf("disks in Process: got %v, want %v", got, []string{hotID})
	}
	if err := v.RemoveDisk(ctx, hotID); err != nil {
		return err
	}
	return v.diskSeen(ctx, "")
}
