package shim

import (
	"os"
	"strings"

	"godwit.dev/godwit/snapshot/worker"
)

const partial = ".partial"

// adoptDisks gives the files of a move their names. They are this VM's alone, like its RAM:
// they enter no cache, since only the worker vouches for them.
func adoptDisks(disks []worker.Disk) error {
	for _, d := range disks {
		path := d.File.Name()
		if err := os.Chmod(path, 0o444); err != nil { // for the VMM, which is a user of its own
			return err
		}
		if err := os.Rename(path, finalName(d)); err != nil {
			return err
		}
	}
	return nil
}

// finalName is the name of a disk that is complete.
func finalName(d worker.Disk) string { return strings.TrimSuffix(d.File.Name(), partial) }
