package main

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// packed opens the tree as a tar file: names in their order, root as the owner, and the time of the commit.
func (r release) packed(tree string) tarball.Opener {
	return func() (io.ReadCloser, error) {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == tree {
				return err
			}
			return r.add(w, tree, path, d)
		})
		if err == nil {
			err = w.Close()
		}
		return io.NopCloser(&out), err
	}
}

func (r release) add(w *tar.Writer, tree, path string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	name, err := filepath.Rel(tree, path)
	if err != nil {
		return err
	}
	if h.Name = name; d.IsDir() {
		h.Name += "/"
	}
	h.Uid, h.Gid, h.Uname, h.Gname, h.ModTime = 0, 0, "", "", r.made
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{} // of the file here, whose reader and maker do not matter
	if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
