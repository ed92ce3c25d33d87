package erofs

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// image is superblock, inodes with what is inline, and then blocks of content.
type image struct {
	ctx     context.Context // of the one call that writes the image
	tree    *tree
	w       io.Writer
	pos     int64
	blocks  int64 // of the whole image
	root    *node
	chunked bool
}

// place decides where everything lies, so that it can be written front to back.
func (m *image) place(root *node) {
	m.root = root
	at := int64(firstInode)
	for _, n := range m.tree.all {
		n.layout = layoutPlain
		body := inodeSize + int64(len(n.xattrs))
		switch {
		case n.chunks != nil:
			n.layout, m.chunked = layoutChunks, true
			body = roundUp(body, 4) + 4*int64(len(n.chunks))
		case n.size > 0 && n.size <= maxInline && body+n.size <= blockSize:
			n.layout = layoutInline
			body += n.size
		}
		at = roundUp(at, slotSize)
		fixed := int64(inodeSize) // must not cross a block: the inode, and an inline tail with all before it
		if n.layout == layoutInline {
			fixed = body
		}
		if at/blockSize != (at+fixed-1)/blockSize {
			at = roundUp(at, blockSize)
		}
		n.offset = at
		at += body
	}
	m.blocks = roundUp(at, blockSize) / blockSize
	for _, n := range m.tree.all {
		n.block = m.blocks
		m.blocks += n.dataBlocks()
	}
}

// dataBlocks is how many blocks of its own the content takes.
func (n *node) dataBlocks() int64 {
	if n.layout == layoutInline {
		return 0
	}
	if n.chunks == nil {
		return roundUp(n.size, blockSize) / blockSize
	}
	var total int64
	for i, data := range n.chunks {
		if data {
			total += n.chunkBlocks(i)
		}
	}
	return total
}

// chunkBlocks is the length of chunk i; the last one ends with the file.
func (n *node) chunkBlocks(i int) int64 {
	start := int64(i) << n.chunkBits
	return roundUp(min(int64(1)<<n.chunkBits, n.size-start), blockSize) / blockSize
}

func (m *image) write() error {
	if m.blocks > hole-1 {
		return fmt.Errorf("the tree takes %d blocks, more than erofs has: %w", m.blocks, errdefs.ErrOutOfRange)
	}
	if err := m.pad(superOffset); err != nil {
		return err
	}
	if err := m.put(m.super()); err != nil {
		return err
	}
	for _, n := range m.tree.all {
		if err := m.writeInode(n); err != nil {
			return err
		}
	}
	if err := m.pad(roundUp(m.pos, blockSize)); err != nil {
		return err
	}
	for _, n := range m.tree.all {
		if err := m.ctx.Err(); err != nil {
			return err
		}
		if err := m.writeBlocks(n); err != nil {
			return err
		}
	}
	return nil
}

func (m *image) super() []byte {
	le, b := binary.LittleEndian, make([]byte, superSize)
	le.PutUint32(b[0:], superMagic)
	le.PutUint32(b[8:], featureMTime)
	b[12] = blockBits
	le.PutUint16(b[14:], uint16(m.root.offset/slotSize))
	le.PutUint64(b[16:], uint64(len(m.tree.all)))
	le.PutUint32(b[36:], uint32(m.blocks))
	if m.chunked {
		le.PutUint32(b[80:], featureChunked)
	}
	return b
}

func (m *image) writeInode(n *node) error {
	if err := m.pad(n.offset); err != nil {
		return err
	}
	le, b := binary.LittleEndian, make([]byte, inodeSize)
	le.PutUint16(b[0:], uint16(1|n.layout<<1))
	if len(n.xattrs) > 0 {
		le.PutUint16(b[2:], uint16((len(n.xattrs)-12)/4+1))
	}
	le.PutUint16(b[4:], uint16(n.stat.Mode))
	le.PutUint64(b[8:], uint64(n.size))
	le.PutUint32(b[16:], n.place())
	le.PutUint32(b[20:], uint32(n.offset/slotSize))
	le.PutUint32(b[24:], n.stat.Uid)
	le.PutUint32(b[28:], n.stat.Gid)
	le.PutUint64(b[32:], uint64(n.stat.Mtim.Sec))
	le.PutUint32(b[40:], uint32(n.stat.Mtim.Nsec))
	le.PutUint32(b[44:], n.nlink)
	if err := m.put(append(b, n.xattrs...)); err != nil {
		return err
	}
	switch n.layout {
	case layoutInline:
		return m.content(n)
	case layoutChunks:
		return m.put(n.chunkMap())
	}
	return nil
}

// place is the inode's field that depends on its type.
func (n *node) place() uint32 {
	switch {
	case n.is(unix.S_IFCHR), n.is(unix.S_IFBLK):
		major, minor := unix.Major(n.stat.Rdev), unix.Minor(n.stat.Rdev)
		return minor&0xFF | major<<8 | (minor&^0xFF)<<12
	case n.layout == layoutChunks:
		return uint32(n.chunkBits - blockBits)
	case n.layout == layoutPlain && n.size > 0:
		return uint32(n.block)
	}
	return 0
}

func (n *node) chunkMap() []byte {
	b, block := make([]byte, 4*len(n.chunks)), n.block
	for i, data := range n.chunks {
		if !data {
			binary.LittleEndian.PutUint32(b[4*i:], hole)
			continue
		}
		binary.LittleEndian.PutUint32(b[4*i:], uint32(block))
		block += n.chunkBlocks(i)
	}
	return b
}

// writeBlocks writes the content that has blocks of its own.
func (m *image) writeBlocks(n *node) error {
	if n.dataBlocks() == 0 {
		return nil
	}
	if n.chunks == nil {
		if err := m.content(n); err != nil {
			return err
		}
		return m.pad(roundUp(m.pos, blockSize))
	}
	f, err := n.open()
	if err != nil {
		return err
	}
	defer f.Close()
	for i, data := range n.chunks {
		if !data {
			continue
		}
		start := int64(i) << n.chunkBits
		if err := m.copy(n, io.NewSectionReader(f, start, n.chunkBlocks(i)*blockSize),
			min(n.chunkBlocks(i)*blockSize, n.size-start)); err != nil {
			return err
		}
		if err := m.pad(roundUp(m.pos, blockSize)); err != nil {
			return err
		}
	}
	return nil
}

func (m *image) content(n *node) error {
	switch {
	case n.is(unix.S_IFDIR):
		return m.put(n.dirData())
	case n.is(unix.S_IFLNK):
		return m.put([]byte(n.link))
	}
	f, err := n.open()
	if err != nil {
		return err
	}
	defer f.Close()
	return m.copy(n, f, n.size)
}

func (m *image) copy(n *node, from io.Reader, size int64) error {
	written, err := io.CopyN(m.w, from, size)
	m.pos += written
	if err == io.EOF {
		return fmt.Errorf("%s changed while it was read: %w", n.path, errdefs.ErrAborted)
	}
	return err
}

func (m *image) put(b []byte) error {
	n, err := m.w.Write(b)
	m.pos += int64(n)
	return err
}

var zeros [blockSize]byte

func (m *image) pad(to int64) error {
	for m.pos < to {
		if err := m.put(zeros[:min(to-m.pos, blockSize)]); err != nil {
			return err
		}
	}
	return nil
}
