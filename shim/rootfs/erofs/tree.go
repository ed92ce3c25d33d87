package erofs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

type fileID struct{ dev, ino uint64 }

// node is one inode of the tree.
type node struct {
	path   string // of one of its names
	stat   unix.Stat_t
	xattrs []byte // the inode's attribute area
	link   string
	names  []string // of a directory's entries, sorted, with . and ..
	nodes  []*node  // parallel to names
	nlink  uint32

	layout    int
	size      int64
	offset    int64 // of the inode in the image
	block     int64 // first block of the content, where it has blocks
	chunkBits uint
	chunks    []bool // which chunks hold data
}

type tree struct {
	ctx   context.Context // of the one call that reads the tree
	root  string
	links map[fileID]*node
	all   []*node // parents first
}

// read walks the tree in the order of names, so that the image depends on nothing else.
func (t *tree) read(dir string) (*node, error) {
	root, err := t.add(dir)
	if err != nil {
		return nil, err
	}
	if !root.is(unix.S_IFDIR) {
		return nil, fmt.Errorf("%s is not a directory: %w", dir, errdefs.ErrInvalidArgument)
	}
	return root, t.children(root, root)
}

func (t *tree) children(n, parent *node) error {
	if err := t.ctx.Err(); err != nil {
		return err
	}
	entries, err := os.ReadDir(n.path)
	if err != nil {
		return err
	}
	byName := map[string]*node{".": n, "..": parent}
	n.names, n.nlink = append(n.names, ".", ".."), 2
	var dirs []*node
	for _, e := range entries {
		child, err := t.add(filepath.Join(n.path, e.Name()))
		if err != nil {
			return err
		}
		n.names, byName[e.Name()] = append(n.names, e.Name()), child
		if child.is(unix.S_IFDIR) {
			n.nlink++
			dirs = append(dirs, child)
		}
	}
	slices.Sort(n.names)
	for _, name := range n.names {
		n.nodes = append(n.nodes, byName[name])
	}
	n.size = n.dirSize()
	for _, d := range dirs {
		if err := t.children(d, n); err != nil {
			return err
		}
	}
	return nil
}

// add reads one name; a further name of a known inode gives that inode.
func (t *tree) add(path string) (*node, error) {
	n := &node{path: path, nlink: 1}
	if err := unix.Lstat(path, &n.stat); err != nil {
		return nil, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	if !n.is(unix.S_IFDIR) && n.stat.Nlink > 1 {
		id := fileID{uint64(n.stat.Dev), n.stat.Ino}
		if known := t.links[id]; known != nil {
			known.nlink++
			return known, nil
		}
		t.links[id] = n
	}
	var err error
	if n.xattrs, err = readXattrs(path); err != nil {
		return nil, err
	}
	switch {
	case n.is(unix.S_IFLNK):
		if n.link, err = os.Readlink(path); err != nil {
			return nil, err
		}
		n.size = int64(len(n.link))
	case n.is(unix.S_IFREG):
		n.size = n.stat.Size
		if n.stat.Blocks*512 < n.size {
			if err := n.findHoles(); err != nil {
				return nil, err
			}
		}
	}
	t.all = append(t.all, n)
	return n, nil
}

func (n *node) is(format uint32) bool { return n.stat.Mode&unix.S_IFMT == format }

// open reads a file that was listed. No link that has taken its place is followed, and no pipe
// waited for.
func (n *node) open() (*os.File, error) {
	f, err := os.OpenFile(n.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("%s changed while it was read: %w", n.path, errdefs.ErrAborted)
	}
	return f, nil
}

// findHoles fills chunks if the file has a chunk without data.
func (n *node) findHoles() error {
	f, err := n.open()
	if err != nil {
		return err
	}
	defer f.Close()
	n.chunkBits = blockBits
	for (n.size-1)>>n.chunkBits+1 > maxChunks {
		n.chunkBits++
	}
	chunks := make([]bool, (n.size-1)>>n.chunkBits+1)
	for at := int64(0); at < n.size; {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // nothing but a hole up to the end
		}
		if err != nil {
			return &os.PathError{Op: "seek", Path: n.path, Err: err}
		}
		if at, err = unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE); err != nil {
			return &os.PathError{Op: "seek", Path: n.path, Err: err}
		}
		for i := data >> n.chunkBits; i<<n.chunkBits < min(at, n.size); i++ {
			chunks[i] = true
		}
	}
	if slices.Contains(chunks, false) {
		n.chunks = chunks
	}
	return nil
}

// prefixes of attribute names, by their number in the image.
var prefixes = []struct {
	index byte
	text  string
	whole bool // the name is the prefix itself
}{
	{1, "user.", false}, {2, "system.posix_acl_access", true}, {3, "system.posix_acl_default", true},
	{4, "trusted.", false}, {6, "security.", false},
}

// readXattrs returns the attribute area of an inode: nil without attributes.
func readXattrs(path string) ([]byte, error) {
	list, err := xattr(func(buf []byte) (int, error) { return unix.Llistxattr(path, buf) })
	if errors.Is(err, unix.ENOTSUP) || err == nil && len(list) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "listxattr", Path: path, Err: err}
	}
	names := strings.Split(strings.TrimRight(string(list), "\x00"), "\x00")
	slices.Sort(names)
	area := make([]byte, 12) // header: no filter, no shared attributes
	for _, name := range names {
		value, err := xattr(func(buf []byte) (int, error) { return unix.Lgetxattr(path, name, buf) })
		if err != nil {
			return nil, &os.PathError{Op: "getxattr " + name, Path: path, Err: err}
		}
		if area, err = appendXattr(area, name, value); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if (len(area)-12)/4+1 > 0xFFFF {
		return nil, fmt.Errorf("%s: its extended attributes take %d bytes, too many for erofs: %w", path, len(area),
			errdefs.ErrOutOfRange)
	}
	return area, nil
}

func appendXattr(area []byte, name string, value []byte) ([]byte, error) {
	for _, p := range prefixes {
		suffix, ok := strings.CutPrefix(name, p.text)
		if !ok || (p.whole && suffix != "") {
			continue
		}
		if len(suffix) > 255 || len(value) > 0xFFFF {
			return nil, fmt.Errorf("extended attribute %s is too large for erofs: %w", name, errdefs.ErrOutOfRange)
		}
		area = append(area, byte(len(suffix)), p.index, byte(len(value)), byte(len(value)>>8))
		area = append(append(area, suffix...), value...)
		return append(area, make([]byte, roundUp(int64(len(area)), 4)-int64(len(area)))...), nil
	}
	return nil, fmt.Errorf("extended attribute %s: erofs has no place for its kind: %w", name, errdefs.ErrNotImplemented)
}

// xattr asks for the size first and again if it has grown meanwhile.
func xattr(get func([]byte) (int, error)) ([]byte, error) {
	for {
		n, err := get(nil)
		if err != nil || n == 0 {
			return nil, err
		}
		buf := make([]byte, n)
		if n, err = get(buf); err == nil {
			return buf[:n], nil
		}
		if !errors.Is(err, unix.ERANGE) {
			return nil, err
		}
	}
}
