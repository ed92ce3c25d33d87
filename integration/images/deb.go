package images

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// packages is a directory of Debian packages, filled as they are asked for from wherever
// this machine gets its own.
type packages string

// fetch answers the files of packages, in their order.
func (dir packages) fetch(ctx context.Context, names []string) ([]string, error) {
	if err := os.MkdirAll(string(dir), 0o755); err != nil {
		return nil, err
	}
	var missing []string
	for _, name := range names {
		if file, err := dir.find(name); err != nil {
			return nil, err
		} else if file == "" {
			missing = append(missing, name)
		}
	}
	if err := dir.download(ctx, missing); err != nil {
		return nil, err
	}
	var files []string
	for _, name := range names {
		file, err := dir.find(name)
		if err != nil {
			return nil, err
		}
		if file == "" {
			return nil, fmt.Errorf("find package %s in %s: it was downloaded under another name", name, dir)
		}
		files = append(files, file)
	}
	return files, nil
}

func (dir packages) find(name string) (string, error) {
	all, err := filepath.Glob(filepath.Join(string(dir), name+"_*.deb"))
	if err != nil || len(all) == 0 {
		return "", err
	}
	return all[len(all)-1], nil
}

// download brings packages; where the machine's lists are older than its mirror, or it
// has none yet, they are renewed once.
func (dir packages) download(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	err := dir.get(ctx, names)
	if err == nil {
		return nil
	}
	if out, uerr := exec.CommandContext(ctx, "apt-get", "-q", "update").CombinedOutput(); uerr != nil {
		return errors.Join(err, fmt.Errorf("renew package lists: %w: %s", uerr, out))
	}
	return dir.get(ctx, names)
}

// get never shows a half of a package.
func (dir packages) get(ctx context.Context, names []string) error {
	tmp, err := os.MkdirTemp(string(dir), "get")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-q", "download"}, names...)...)
	cmd.Dir = tmp
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("download packages %s: %w: %s", strings.Join(names, " "), err, out)
	}
	got, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil {
		return err
	}
	for _, file := range got {
		if err := os.Rename(file, filepath.Join(string(dir), filepath.Base(file))); err != nil {
			return err
		}
	}
	return nil
}

// unneeded in a container image.
var unneeded = []string{"usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/info/",
	"usr/share/lintian/", "lib/systemd/"}

// layer unpacks packages into the files of one layer, their maintainer scripts not run.
func (dir packages) layer(ctx context.Context, names ...string) ([]File, error) {
	debs, err := dir.fetch(ctx, names)
	if err != nil {
		return nil, err
	}
	var files []File
	seen := map[string]bool{}
	for _, deb := range debs {
		data, err := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb).Output()
		if err != nil {
			return nil, fmt.Errorf("unpack %s: %w", deb, err)
		}
		more, err := untar(data)
		if err != nil {
			return nil, fmt.Errorf("unpack %s: %w", deb, err)
		}
		for _, f := range more {
			dir := f.Mode.IsDir()
			if f.Name == "." || dir && seen[f.Name] || slices.ContainsFunc(unneeded, func(p string) bool {
				return strings.HasPrefix(f.Name+"/", p)
			}) {
				continue
			}
			seen[f.Name] = dir
			files = append(files, f)
		}
	}
	return files, nil
}

// status is what dpkg knows of packages that are installed.
func (dir packages) status(ctx context.Context, names ...string) ([]byte, error) {
	debs, err := dir.fetch(ctx, names)
	if err != nil {
		return nil, err
	}
	var all bytes.Buffer
	for _, deb := range debs {
		control, err := exec.CommandContext(ctx, "dpkg-deb", "--field", deb).Output()
		if err != nil {
			return nil, fmt.Errorf("read control of %s: %w", deb, err)
		}
		first, rest, _ := strings.Cut(string(control), "\n")
		fmt.Fprintf(&all, "%s\nStatus: install ok installed\n%s\n", first, rest)
	}
	return all.Bytes(), nil
}

func untar(data []byte) ([]File, error) {
	var files []File
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		f := File{Name: filepath.Clean(h.Name), Mode: h.FileInfo().Mode(), UID: h.Uid, GID: h.Gid, ModTime: h.ModTime}
		switch h.Typeflag {
		case tar.TypeLink:
			f.Link = filepath.Clean(h.Linkname)
		case tar.TypeSymlink:
			f.Mode, f.Target = fs.ModeSymlink|0o777, h.Linkname
		case tar.TypeReg:
			if f.Data, err = io.ReadAll(r); err != nil {
				return nil, err
			}
		}
		files = append(files, f)
	}
}
