package shim

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/worker"
)

// openClones opens a file in the directory of each writable disk, for its clone in the pause. No directory has
// it: it goes with the worker. Without one the disk is read in the pause.
func (p *pushing) openClones(spaces []worker.Space) {
	for i := range spaces {
		s := &spaces[i]
		if s.Disk == "" {
			continue
		}
		f, err := p.files.open(filepath.Dir(s.File.Name()), os.O_RDWR|unix.O_TMPFILE)
		if err != nil {
			p.vm.log.Info("a disk is not cloned", "disk", s.Disk, "error", err)
			continue
		}
		s.Clone = worker.Open(f)
	}
}

// disksInPause says which disks were read in the pause, and why.
func disksInPause(disks []snapshot.DiskInPause) (notes []string) {
	for _, d := range disks {
		if d.Noted {
			notes = append(notes, fmt.Sprintf("disk %s: %.1f MiB that were written meanwhile were read in the pause: %s", d.Disk,
				float64(d.Read)/(1<<20), d.Why))
			continue
		}
		notes = append(notes, fmt.Sprintf("disk %s: %.1f MiB were read in the pause, and what was written was copied: %s",
			d.Disk, float64(d.Read)/(1<<20), d.Why))
	}
	return notes
}
