package changes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/archive"
)

// Kind of a change, in the letters of docker diff.
type Kind string

// The kinds.
const (
	Added   Kind = "A"
	Changed Kind = "C"
	Deleted Kind = "D"
)

// Change is a path that differs from the image. Header and content are those of the VM's file; nil for one that is
// deleted.
type Change struct {
	Kind    Kind
	Path    string // from the root on
	Header  *tar.Header
	Content io.Reader
}

// paddingMax bounds what may follow the end of a tar stream, in bytes.
const paddingMax = 1 << 20

// Room is what a VM can have of its own, in bytes, as its host knows it. The guest is not asked.
type Room struct {
	Disk   uint64 // its writable disk
	Memory uint64 // in which mounts may lie
}

// Compare tells what the files of a VM differ in from the base, first what there is and then what is deleted. Paths
// below those of apart belong to mounts, and are left out; they begin at the root. A base is compared once. What the
// guest cannot pack (devices, pipes, sockets) counts as unchanged. What is told has no more bytes than the disk of the
// VM, and the stream no more than the VM can have.
func (b *Base) Compare(r io.Reader, room Room, apart []string, tell func(Change) error) error {
	c := &comparison{base: b, apart: apart, tell: tell, disk: room.Disk, left: room.Disk}
	defer c.close()
	r = &bounded{r, b.root.bytes() + 2*(room.Disk+room.Memory) + paddingMax}
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the VM's files: %w", err)
		}
		if err := c.file(h, t); err != nil {
			return err
		}
	}
	// Only a stream that has ended well shows what is not there.
	if _, err := io.CopyN(io.Discard, r, paddingMax); !errors.Is(err, io.EOF) {
		if err == nil {
			err = fmt.Errorf("more than %d bytes follow its end: %w", paddingMax, errdefs.ErrInvalidArgument)
		}
		return fmt.Errorf("read the VM's files: %w", err)
	}
	return c.deleted(&b.root, "/")
}

type comparison struct {
	base  *Base
	apart []string
	tell  func(Change) error
	spool *os.File // holds one file while its content is looked at
	disk  uint64   // bytes of the VM's disk
	left  uint64   // of them that were not told of
}

// bounded is a stream that ends by an error after so many bytes.
type bounded struct {
	io.Reader
	left uint64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, fmt.Errorf("the VM sends more than it can have: %w", errdefs.ErrInvalidArgument)
	}
	n, err := b.Reader.Read(p[:min(uint64(len(p)), b.left)])
	b.left -= uint64(n)
	return n, err
}

// tellOf tells a change, if the VM's disk can hold it.
func (c *comparison) tellOf(change Change) error {
	if size := uint64(max(change.Header.Size, 0)); change.Header.Typeflag == tar.TypeReg {
		if size > c.left {
			return fmt.Errorf("%s: what the VM has changed has more bytes than its disk (%d). Files with holes and each name "+
				"of a hard link count whole. To go on, remove some of them: %w", change.Path, c.disk, errdefs.ErrFailedPrecondition)
		}
		c.left -= size
	}
	return c.tell(change)
}

func (c *comparison) close() {
	if c.spool != nil {
		_ = c.spool.Close()
		_ = os.Remove(c.spool.Name())
	}
}

// outside reports whether a path belongs to a mount.
func (c *comparison) outside(name string) bool {
	return slices.ContainsFunc(c.apart, func(dir string) bool {
		return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
	})
}

func (c *comparison) file(h *tar.Header, content io.Reader) error {
	if err := archive.Dense(h); err != nil { // of a mount too: to skip it takes hours
		return fmt.Errorf("read the VM's files: %w", err)
	}
	name, err := clean(h.Name)
	if err != nil || name == "." || c.outside("/"+name) {
		return err
	}
	if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir && h.Typeflag != tar.TypeSymlink {
		return fmt.Errorf("read the VM's files: %s has the kind %q, which is not known: %w", name, h.Typeflag,
			errdefs.ErrInvalidArgument)
	}
	change := Change{Kind: Added, Path: "/" + name, Header: h, Content: content}
	was := c.base.find(name)
	if was == nil {
		return c.tellOf(change)
	}
	was.seen, was.file = true, h.Typeflag != tar.TypeDir
	change.Kind = Changed
	same, err := c.same(was, &change)
	if err != nil || same {
		return err
	}
	return c.tellOf(change)
}

// same compares a file with that of the image. The time of a directory changes with what lies in it, and says nothing.
func (c *comparison) same(was *node, now *Change) (bool, error) {
	e := entryOf(now.Header)
	if was.entry == nil { // some layer has a file below it
		return e.kind == tar.TypeDir, nil
	}
	if was.kind != e.kind || was.uid != e.uid || was.gid != e.gid {
		return false, nil
	}
	switch e.kind {
	case tar.TypeSymlink:
		return was.link == e.link, nil
	case tar.TypeDir:
		return was.mode == e.mode, nil
	}
	if was.mode != e.mode || was.size != e.size || was.modified != e.modified {
		return false, nil
	}
	return c.sameContent(was.sum, now)
}

// spoolInMemory is how much of a file is held without a file of this host.
const spoolInMemory = 1 << 20

// sameContent reads the content, and puts it where it can be read again.
func (c *comparison) sameContent(sum [sha256.Size]byte, now *Change) (bool, error) {
	read := sha256.New()
	content := io.TeeReader(now.Content, read)
	if now.Header.Size <= spoolInMemory {
		data, err := io.ReadAll(content)
		now.Content = bytes.NewReader(data)
		return [sha256.Size]byte(read.Sum(nil)) == sum, err
	}
	if c.spool == nil {
		var err error
		if c.spool, err = os.CreateTemp("", "godwit-commit-"); err != nil {
			return false, fmt.Errorf("hold a file of the VM: %w", err)
		}
	}
	if err := c.spool.Truncate(0); err != nil {
		return false, fmt.Errorf("hold a file of the VM: %w", err)
	}
	if _, err := c.spool.Seek(0, io.SeekStart); err != nil {
		return false, fmt.Errorf("hold a file of the VM: %w", err)
	}
	if _, err := io.Copy(c.spool, content); err != nil {
		return false, fmt.Errorf("hold a file of the VM: %w", err)
	}
	now.Content = io.NewSectionReader(c.spool, 0, now.Header.Size)
	return [sha256.Size]byte(read.Sum(nil)) == sum, nil
}

// deleted tells what the image has and the VM has not; what lies below such a directory goes with it.
func (c *comparison) deleted(at *node, dir string) error {
	for _, name := range slices.Sorted(maps.Keys(at.children)) {
		child, full := at.children[name], path.Join(dir, name)
		switch {
		case c.outside(full) || !child.seen && !packed(child):
		case !child.seen:
			if err := c.tell(Change{Kind: Deleted, Path: full}); err != nil {
				return err
			}
		case !child.file:
			if err := c.deleted(child, full); err != nil {
				return err
			}
		}
	}
	return nil
}

// packed reports whether a guest packs such a file.
func packed(n *node) bool {
	return n.entry == nil || n.kind == tar.TypeReg || n.kind == tar.TypeDir || n.kind == tar.TypeSymlink
}
