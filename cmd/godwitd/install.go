package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// imageTree is where the container image has the files of a node, by their paths on the node.
const imageTree = "/opt/godwit"

// install puts the files of the image into the root file system of a node, which is mounted at to, and says which. Each
// is there whole, or as it was: VMs run on with the programs that they have. Configuration of the node is left alone.
func install(out io.Writer, from, to string) error {
	root, err := os.OpenRoot(to) // links on the node that lead out of it are not followed
	if err != nil {
		return fmt.Errorf("install into %s: %w", to, err)
	}
	defer root.Close()
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
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
		if err := put(root, path, name); err != nil {
			return fmt.Errorf("install %s into %s: %w", name, to, err)
		}
		_, err = fmt.Fprintf(out, "installed /%s\n", name)
		return err
	})
}

// put copies a file to its place below root by way of another name.
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
	next := name + ".new"
	if err := root.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	to, err := root.OpenFile(next, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if _, err := io.Copy(to, in); err != nil {
		return err
	}
	if err := errors.Join(to.Chmod(info.Mode().Perm()), to.Sync()); err != nil { // whatever the umask is
		return err
	}
	return root.Rename(next, name)
}
