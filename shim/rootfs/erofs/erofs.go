// Package erofs writes a directory tree as an uncompressed erofs image. The image equals the
// tree in names, types, modes, owners, times to the nanosecond and extended attributes. It also
// equals it in hard links, device numbers and content, holes included. The same tree gives the
// same bytes. Package rootfs builds the read-only disks of a VM with it.
package erofs

import (
	"bufio"
	"context"
	"fmt"
	"io"
)

const (
	blockBits = 12
	blockSize = 1 << blockBits
	slotSize  = 32 // inodes are numbered in units of this

	superOffset = 1024
	superSize   = 128
	superMagic  = 0xE0F5E1E2
	// firstInode is the root's place; its number is not 0, because readdir hides that.
	firstInode = superOffset + superSize

	featureMTime   = 0x2 // compatible: times are those of modification
	featureChunked = 0x4 // incompatible: some files have a chunk map

	inodeSize = 64 // the extended form

	layoutPlain  = 0
	layoutInline = 2
	layoutChunks = 4

	// maxInline keeps metadata dense: larger content gets blocks of its own.
	maxInline = 2048
	// maxChunks bounds the map of a file with holes; a larger file gets larger chunks.
	maxChunks = 1 << 16
	hole      = 0xFFFFFFFF
)

// Write puts the tree at dir to w, front to back. The tree must not change meanwhile;
// a file that does is an error of class Aborted.
func Write(ctx context.Context, w io.Writer, dir string) error {
	t := &tree{ctx: ctx, root: dir, links: make(map[fileID]*node)}
	root, err := t.read(dir)
	if err != nil {
		return fmt.Errorf("build erofs image of %s: %w", dir, err)
	}
	img := &image{ctx: ctx, tree: t}
	img.place(root)
	buf := bufio.NewWriterSize(w, 1<<20)
	img.w = buf
	if err := img.write(); err != nil {
		return fmt.Errorf("build erofs image of %s: %w", dir, err)
	}
	if err := buf.Flush(); err != nil {
		return fmt.Errorf("build erofs image of %s: %w", dir, err)
	}
	return nil
}

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }
