package initd

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// offered are the modules of a directory that are loaded when the kernel asks for them. What a container does with
// sockets and netlink makes the kernel ask. It runs modprobe in the root of process 1.
type offered struct {
	dir    string
	insert func(image []byte) error
}

// Modprobe is what the kernel runs, with the arguments "-q -- NAME". It answers the exit code.
func Modprobe(args []string) int {
	o := offered{filepath.Join(modulesDir, "offered"), func(image []byte) error { return unix.InitModule(image, "") }}
	if len(args) == 0 {
		return 1
	}
	if err := o.load(args[len(args)-1]); err != nil {
		if !errors.Is(err, os.ErrNotExist) { // the kernel asks for many names that no module has
			console("%v", err)
		}
		return 1
	}
	return 0
}

// load loads the modules that have a name, each after what it needs. NotExist says that no module is offered by it.
func (o offered) load(name string) error {
	modules, err := o.find(name)
	if err != nil {
		return fmt.Errorf("load module %s: %w", name, err)
	}
	for _, module := range modules {
		image, err := unpack(filepath.Join(o.dir, module+".ko.gz"))
		if err == nil {
			err = o.insert(image)
		}
		if err != nil && !errors.Is(err, unix.EEXIST) { // one that is there already is fine
			return fmt.Errorf("load module %s for %s: %w", module, name, err)
		}
	}
	return nil
}

// find answers the modules of a name in loading order.
func (o offered) find(name string) (modules []string, err error) {
	needs, err := readLines(filepath.Join(o.dir, "needs"))
	if err != nil {
		return nil, err
	}
	aliases, err := readLines(filepath.Join(o.dir, "aliases"))
	if err != nil {
		return nil, err
	}
	names := []string{name}
	for _, alias := range aliases {
		if matches, err := path.Match(plain(alias[0]), plain(name)); err == nil && matches && len(alias) == 2 {
			names = append(names, alias[1])
		}
	}
	for _, module := range needs {
		if !slices.ContainsFunc(names, func(n string) bool { return plain(n) == plain(module[0]) }) {
			continue
		}
		for _, m := range append(module[1:], module[0]) {
			if !slices.Contains(modules, m) {
				modules = append(modules, m)
			}
		}
	}
	if len(modules) == 0 {
		return nil, os.ErrNotExist
	}
	return modules, nil
}

// plain is a name of a module as the kernel compares it.
func plain(name string) string { return strings.ReplaceAll(name, "-", "_") }

// readLines reads the words of each line that has one.
func readLines(name string) (lines [][]string, err error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		if words := strings.Fields(line); len(words) > 0 {
			lines = append(lines, words)
		}
	}
	return lines, nil
}

func unpack(name string) ([]byte, error) {
	packed, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", filepath.Base(name), err)
	}
	return io.ReadAll(r)
}
