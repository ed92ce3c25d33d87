// Package program finds the shim's binary, and names its roles. The first argument of the binary chooses one.
package program

import (
	"errors"
	"os"
	"path/filepath"
)

// Name is the file name of the binary.
const Name = "containerd-shim-godwit-v1"

// Roles in which godwitd starts the binary.
const (
	Adopt    = "adopt"    // takes over the VM of a shim that died
	Fit      = "fit"      // says whether a VM could come to this node
	Template = "template" // makes templates
	Worker   = "worker"   // handles the pages of snapshots; shims start it too
)

// Path is the binary in the directory of the program that runs, or, if none is there, Name for
// PATH. Where that cannot be told, it is the one in that directory: another may be of another
// build.
func Path() string {
	self, err := os.Executable()
	if err != nil {
		return Name
	}
	return in(filepath.Dir(self))
}

func in(dir string) string {
	path := filepath.Join(dir, Name)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return Name
	}
	return path
}
