package initd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const modulesDir = "/modules"

// modules are names of files in modulesDir in loading order.
type modules []string

// readModules reads the order; a kernel that needs no modules has none.
func readModules() (modules, error) {
	data, err := os.ReadFile(filepath.Join(modulesDir, "list"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read list of modules: %w", err)
	}
	return strings.Fields(string(data)), nil
}

// split cuts the list after the named module.
func (m modules) split(last string) (first, rest modules) {
	i := slices.Index(m, last) + 1
	if i == 0 {
		return m, nil
	}
	return m[:i], m[i:]
}

// load inserts the modules in order. One that is there already is fine.
func (m modules) load() error {
	for _, name := range m {
		if err := insert(filepath.Join(modulesDir, name)); err != nil {
			return fmt.Errorf("load module %s: %w", name, err)
		}
	}
	return nil
}

func insert(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return err
	}
	return nil
}
