package erofs

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// A directory is a row of blocks; each holds records of the same order as the names after them.
// The names of the whole directory are sorted, because the kernel searches them by halving.
const recordSize = 12

// perBlock returns how many of the names fit the next block, and the bytes they take.
func perBlock(names []string) (count, size int) {
	for _, name := range names {
		if size+recordSize+len(name) > blockSize {
			break
		}
		size += recordSize + len(name)
		count++
	}
	return count, size
}

func (n *node) dirSize() int64 {
	var total int64
	for names := n.names; len(names) > 0; {
		count, size := perBlock(names)
		if names = names[count:]; len(names) > 0 {
			size = blockSize
		}
		total += int64(size)
	}
	return total
}

func (n *node) dirData() []byte {
	data := make([]byte, 0, n.size)
	names, nodes := n.names, n.nodes
	for len(names) > 0 {
		count, size := perBlock(names)
		if count < len(names) {
			size = blockSize
		}
		block := make([]byte, size)
		at := count * recordSize
		for i, name := range names[:count] {
			record := block[i*recordSize:]
			binary.LittleEndian.PutUint64(record, uint64(nodes[i].offset/slotSize))
			binary.LittleEndian.PutUint16(record[8:], uint16(at))
			record[10] = nodes[i].fileType()
			at += copy(block[at:], name)
		}
		data = append(data, block...)
		names, nodes = names[count:], nodes[count:]
	}
	return data
}

func (n *node) fileType() byte {
	switch n.stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return 1
	case unix.S_IFDIR:
		return 2
	case unix.S_IFCHR:
		return 3
	case unix.S_IFBLK:
		return 4
	case unix.S_IFIFO:
		return 5
	case unix.S_IFSOCK:
		return 6
	case unix.S_IFLNK:
		return 7
	}
	return 0
}
