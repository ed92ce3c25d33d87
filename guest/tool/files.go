package tool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"syscall"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/guesttool"
	"godwit.dev/godwit/internal/archive"
)

// stat tells what a path is.
func stat(name string) (*guesttool.FileInfo, error) {
	if !path.IsAbs(name) {
		return nil, fmt.Errorf("path %q: write it from the root on: %w", name, errdefs.ErrInvalidArgument)
	}
	info, err := archive.Look(name)
	return info, plain(name, err)
}

// plain is the error of a path without the name of a system call.
func plain(name string, err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("there is no %s in the VM: %w", name, errdefs.ErrNotFound)
	}
	return err
}

func pack(out io.Writer, name, as string) (*archive.Result, error) {
	root, err := os.OpenRoot(path.Dir(path.Clean(name)))
	if err != nil {
		return nil, plain(name, err)
	}
	defer root.Close()
	base := path.Base(path.Clean(name))
	if base == "/" {
		base = "."
	}
	result, err := archive.Pack(out, root, base, as)
	return &result, err
}

func unpack(in io.Reader, dir, under string, owners bool) (*archive.Result, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, plain(dir, err)
	}
	defer root.Close()
	u := &archive.Unpacker{Root: root, Under: under, Owners: owners, Follow: true}
	defer terminated(u.Abort)()
	if f, ok := in.(*os.File); ok {
		in = patient{int(f.Fd())}
	}
	result, err := u.Unpack(in)
	if err == nil { // what the host is told to be there stays when the VM is killed
		err = settle(root)
	}
	return &result, err
}

// settle has the kernel write what a file system has in memory.
func settle(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	return syncfs(dir)
}
