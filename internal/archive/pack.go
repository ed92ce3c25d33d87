package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"github.com/containerd/errdefs"
)

// batch is how many entries of a directory are read at once.
const batch = 256

// Pack writes name, a path in root, and all below it as a tar stream. In the stream it is called
// as; "." stands for the content of a directory. Symbolic links stay links.
func Pack(w io.Writer, root *os.Root, name, as string) (Result, error) {
	p := &packer{tar: tar.NewWriter(w), root: root}
	if err := p.add(name, as); err != nil {
		return p.result, err
	}
	if err := p.tar.Close(); err != nil {
		return p.result, fmt.Errorf("end archive: %w", err)
	}
	return p.result, nil
}

type packer struct {
	tar    *tar.Writer
	root   *os.Root
	result Result
}

func (p *packer) add(name, as string) error {
	info, err := p.root.Lstat(name)
	if err != nil {
		return err
	}
	switch info.Mode().Type() {
	case 0:
		return p.file(name, as)
	case fs.ModeDir:
		if err := p.tar.WriteHeader(header(info, tar.TypeDir, as+"/")); err != nil {
			return fmt.Errorf("archive %s: %w", name, err)
		}
		return p.entries(name, as)
	case fs.ModeSymlink:
		h := header(info, tar.TypeSymlink, as)
		if h.Linkname, err = p.root.Readlink(name); err != nil {
			return err
		}
		if err := p.tar.WriteHeader(h); err != nil {
			return fmt.Errorf("archive %s: %w", name, err)
		}
		return nil
	}
	p.result.skip(name)
	return nil
}

// entries adds what a directory holds. What goes away meanwhile was not there; what the kernel shows of
// itself, as /proc, has no place in a copy.
func (p *packer) entries(name, as string) error {
	dir, err := p.root.Open(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	if made, err := ofKernel(dir); made || err != nil {
		p.result.skip(name)
		return err
	}
	for {
		all, err := dir.Readdirnames(batch)
		for _, entry := range all {
			err := p.add(path.Join(name, entry), path.Join(as, entry))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read directory %s: %w", name, err)
		}
	}
}

// file adds a regular file. It is opened in a way that no pipe that has taken its place can hold.
func (p *packer) file(name, as string) error {
	f, err := p.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		p.result.skip(name)
		return nil
	}
	if made, err := ofKernel(f); made || err != nil {
		return errors.Join(err, fmt.Errorf("%s has no size: the kernel makes it when it is read. "+
			"Read it by a command (cat), not by a copy: %w", name, errdefs.ErrFailedPrecondition))
	}
	if err := p.tar.WriteHeader(header(info, tar.TypeReg, as)); err != nil {
		return fmt.Errorf("archive %s: %w", name, err)
	}
	n, err := io.CopyN(p.tar, f, info.Size())
	p.result.Bytes += n
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s became shorter while it was copied: copy it again: %w", name, errdefs.ErrAborted)
	}
	if err != nil {
		return fmt.Errorf("archive %s: %w", name, err)
	}
	p.result.Files++
	return nil
}

// header is built by hand: the library's way looks up the names of users.
func header(info fs.FileInfo, kind byte, as string) *tar.Header {
	h := &tar.Header{Typeflag: kind, Name: as, ModTime: info.ModTime(), Mode: int64(info.Mode().Perm()),
		Format: tar.FormatPAX}
	for bit, tarBit := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if info.Mode()&bit != 0 {
			h.Mode |= tarBit
		}
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		h.Uid, h.Gid = int(st.Uid), int(st.Gid)
	}
	if kind == tar.TypeReg {
		h.Size = info.Size()
	}
	return h
}
