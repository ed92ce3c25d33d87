package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// imageTree is where the container image has the files of a node, by their paths on the node.
const imageTree = "/opt/godwit"

// install puts the files of the image into the root file system of a node, which is mounted at to, and says which.
// All are copied next to their places first. Then each gets its name. An error leaves the node as it was, with all of
// its files. VMs run on with the programs that they have. Configuration of the node is left alone.
func install(out io.Writer, from, to string) error {
	root, err := os.OpenRoot(to) // links on the node that lead out of it are not followed
	if err != nil {
		return fmt.Errorf("install into %s: %w", to, err)
	}
	defer root.Close()
	files, err := wanted(root, from)
	if err != nil {
		return err
	}
	if err := copyAll(root, from, files); err != nil {
		return fmt.Errorf("install into %s: %w", to, err)
	}
	sync := func() error { return syncDirs(root, files) }
	if err := (&exchange{names: root, sync: sync, files: files}).run(); err != nil {
		return fmt.Errorf("install into %s: %w", to, err)
	}
	for _, name := range files {
		if _, err := fmt.Fprintf(out, "installed /%s\n", name); err != nil {
			return err
		}
	}
	return nil
}

// copyAll copies the files next to their places. After an error none of them is there.
func copyAll(root *os.Root, from string, files []string) error {
	for i, name := range files {
		if err := put(root, filepath.Join(from, name), name); err != nil {
			return errors.Join(fmt.Errorf("install %s: %w", name, err), unput(root, files[:i]))
		}
	}
	return nil
}

// wanted are the files of the image that the node gets, programs last: a new program finds its guest.
func wanted(root *os.Root, from string) (names []string, err error) {
	err = filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("install from %s, which a container image of godwitd has: %w", from, err)
		}
		name, err := filepath.Rel(from, path)
		if err != nil || d.IsDir() {
			return err
		}
		if strings.HasPrefix(name, "etc/") {
			if _, err := root.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		names = append(names, name)
		return nil
	})
	slices.SortStableFunc(names, func(a, b string) int { return programs(a) - programs(b) })
	return names, err
}

func programs(name string) int {
	if filepath.Base(filepath.Dir(name)) == "bin" {
		return 1
	}
	return 0
}

// put copies a file to another name next to its place below root. After an error nothing of it is there.
func put(root *os.Root, from, name string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if err := unput(root, []string{name}); err != nil {
		return err
	}
	to, err := root.OpenFile(next(name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(to, in)
	if err == nil {
		err = errors.Join(to.Chmod(info.Mode().Perm()), to.Sync()) // whatever the umask is
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return errors.Join(err, unput(root, []string{name}))
	}
	return nil
}

// unput removes files that are not in their places.
func unput(root names, files []string) (err error) {
	for _, name := range files {
		err = errors.Join(err, remove(root, next(name)))
	}
	return err
}

// syncDirs makes the names of the files durable.
func syncDirs(root *os.Root, files []string) error {
	for _, name := range files {
		dir, err := root.Open(filepath.Dir(name))
		if err != nil {
			return err
		}
		if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
			return err
		}
	}
	return nil
}
