package stream

import (
	digest "github.com/opencontainers/go-digest"
)

// disks takes the read-only disks that a node lacks, one after the other.
type disks struct {
	all    []TargetDisk
	needed []int // of all, in the order in which they come
	at     int64
	check  digest.Verifier
}

func newDisks(all []TargetDisk) *disks {
	d := &disks{all: all}
	for i := range all {
		if all[i].File != nil {
			d.needed = append(d.needed, i)
		}
	}
	return d
}

func (d *disks) whole() bool { return len(d.needed) == 0 }

func (d *disks) lacking() (ids []string) {
	for _, i := range d.needed {
		ids = append(ids, d.all[i].ID)
	}
	return ids
}

// take writes the bytes of a frame, and answers whether that were the last ones of all.
func (d *disks) take(f *Frame) (whole bool, err error) {
	if len(d.needed) == 0 || f.Space != d.needed[0] {
		return false, broken("bytes of disk %d, which was not asked for now", f.Space)
	}
	disk := &d.all[f.Space]
	data, err := f.at(d.at, disk.Size)
	if err != nil {
		return false, err
	}
	if d.check == nil {
		if err := disk.Digest.Validate(); err != nil {
			return false, broken("disk %s: %v", disk.ID, err)
		}
		d.check = disk.Digest.Verifier()
	}
	if _, err := disk.File.WriteAt(data, d.at); err != nil {
		return false, fileError("disk "+disk.ID, err)
	}
	_, _ = d.check.Write(data)
	d.at += int64(len(data))
	if d.at < disk.Size {
		return false, nil
	}
	if !d.check.Verified() {
		return false, broken("disk %s is not %s", disk.ID, disk.Digest)
	}
	d.at, d.check, d.needed = 0, nil, d.needed[1:]
	return len(d.needed) == 0, nil
}
