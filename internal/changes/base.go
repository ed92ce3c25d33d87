// Package changes compares the files of a VM with the layers of its image. The files come as a tar stream, which the
// guest has made and which is not trusted. What differs is told as changes, or is written as a layer.
package changes

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/containerd/errdefs"
)

// Names of a layer that take away what lies below it.
//
// Format: image-spec, layer.md, "Whiteouts".
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

const modeBits = 0o7777

// entry is what a path of the image is.
type entry struct {
	kind     byte
	mode     int64
	uid, gid int
	size     int64
	modified int64 // seconds
	link     string
	sum      [sha256.Size]byte // of a file's content
}

// node is a path in the tree of an image; entry is nil for a directory that no layer names.
type node struct {
	*entry
	children map[string]*node
	seen     bool // the VM has it too
	file     bool // and it is no directory there
}

// Base is the file system that the layers of an image make.
type Base struct{ root node }

// headersMax is what the header of one member takes of a tar stream, with two paths as long as Linux has them.
const headersMax = 16 << 10

// bytes that a tar stream of what lies here and below takes at most.
func (n *node) bytes() uint64 {
	all := uint64(headersMax)
	if n.entry != nil && n.kind == tar.TypeReg {
		all += uint64(n.size)
	}
	for _, child := range n.children {
		all += child.bytes()
	}
	return all
}

// find answers the node of a clean path without a leading slash, nil if there is none.
func (b *Base) find(name string) *node {
	at := &b.root
	for part := range strings.SplitSeq(name, "/") {
		if at = at.children[part]; at == nil {
			return nil
		}
	}
	return at
}

// put lays an entry over what is there. What no longer can lie below it goes.
func (b *Base) put(name string, e *entry) {
	at := &b.root
	for part := range strings.SplitSeq(name, "/") {
		if at.children == nil {
			at.children = map[string]*node{}
		}
		if at.children[part] == nil {
			at.children[part] = &node{}
		}
		at = at.children[part]
	}
	if at.entry = e; e.kind != tar.TypeDir {
		at.children = nil
	}
}

func (b *Base) remove(name string) {
	if above := b.parent(name); above != nil {
		delete(above.children, path.Base(name))
	}
}

func (b *Base) parent(name string) *node {
	if dir := path.Dir(name); dir != "." {
		return b.find(dir)
	}
	return &b.root
}

// member is one of a layer, in its order.
type member struct {
	name   string
	entry  *entry
	target string // of a hard link
}

// Add lays one more layer over the others. r is the tar stream of the layer, without compression.
func (b *Base) Add(r io.Reader) error {
	var members []member
	var gone []string // whiteouts take away what earlier layers have, wherever they stand
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read layer: %w: %w", err, errdefs.ErrDataLoss)
		}
		name, err := clean(h.Name)
		if err != nil || name == "." {
			if err != nil {
				return err
			}
			continue
		}
		if base := path.Base(name); strings.HasPrefix(base, whiteout) {
			gone = append(gone, name)
			continue
		}
		m, err := memberOf(name, h, t)
		if err != nil {
			return err
		}
		members = append(members, m)
	}
	for _, name := range gone {
		b.whiteOut(name)
	}
	for _, m := range members {
		if m.entry == nil {
			target := b.find(m.target)
			if target == nil || target.entry == nil {
				return fmt.Errorf("read layer: %s is a link to %s, which is not there: %w", m.name, m.target,
					errdefs.ErrDataLoss)
			}
			m.entry = target.entry
		}
		b.put(m.name, m.entry)
	}
	return nil
}

func (b *Base) whiteOut(name string) {
	base := path.Base(name)
	if base != opaque {
		b.remove(path.Join(path.Dir(name), strings.TrimPrefix(base, whiteout)))
		return
	}
	if dir := b.parent(name); dir != nil {
		dir.children = nil
	}
}

func memberOf(name string, h *tar.Header, content io.Reader) (m member, err error) {
	m.name = name
	if h.Typeflag == tar.TypeLink {
		m.target, err = clean(h.Linkname)
		return m, err
	}
	m.entry = entryOf(h)
	if m.entry.kind == tar.TypeReg {
		sum := sha256.New()
		if _, err := io.Copy(sum, content); err != nil {
			return m, fmt.Errorf("read layer: %w: %w", err, errdefs.ErrDataLoss)
		}
		m.entry.sum = [sha256.Size]byte(sum.Sum(nil))
	}
	return m, nil
}

func entryOf(h *tar.Header) *entry {
	return &entry{kind: h.Typeflag, mode: h.Mode & modeBits, uid: h.Uid, gid: h.Gid, size: h.Size,
		modified: h.ModTime.Unix(), link: h.Linkname}
}

// clean is a name of a tar stream without a slash at either end. One that leads out of the tree is refused.
func clean(name string) (string, error) {
	c := path.Clean(strings.TrimLeft(name, "/"))
	if c == ".." || strings.HasPrefix(c, "../") {
		return "", fmt.Errorf("read archive: the name %q leads out of it: %w", name, errdefs.ErrInvalidArgument)
	}
	return c, nil
}
