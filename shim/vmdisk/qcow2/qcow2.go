// Package qcow2 reads disk images in that format, versions 2 and 3. It writes none, and
// reads nothing but the one file: whatever names another is refused. An image is foreign
// input; its reader needs memory for one table and one cluster, whatever it says.
package qcow2

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
)

const (
	magic         = "QFI\xfb"
	headerV2      = 72
	headerV3      = 104
	maxHeader     = 112
	minBits       = 9  // of a cluster's size
	maxBits       = 21 // 2 MiB
	maxL1         = 32 << 20
	maxNamedBytes = 1023
)

// Incompatible features, by bit.
const (
	dirty        = 1 << iota // reference counts may be wrong; they are not read here
	corrupt                  // its writer gave up
	externalData             // clusters are in another file
	compression              // the header says how clusters are compressed
	extendedL2               // subclusters
)

// Image is an open image.
type Image struct {
	Size int64 // of the disk, in bytes

	file   io.ReaderAt
	length int64 // of the file
	bits   uint  // of a cluster's size
	l1     []uint64
	zstd   bool
	v3     bool
}

// Is reports whether a file that begins with head is an image of this format.
func Is(head []byte) bool { return bytes.HasPrefix(head, []byte(magic)) }

// Open reads the header and the first table of a file of length bytes. A disk of more
// than most bytes is refused.
func Open(file io.ReaderAt, length, most int64) (*Image, error) {
	h := make([]byte, maxHeader)
	n, err := file.ReadAt(h, 0)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("read qcow2 header: %w", err)
	}
	if n < headerV2 || !Is(h) {
		return nil, errMalformed("it has no header")
	}
	m := &Image{file: file, length: length}
	switch version := binary.BigEndian.Uint32(h[4:]); version {
	case 2:
	case 3:
		if n < headerV3 {
			return nil, errMalformed("its header is cut")
		}
		m.v3 = true
		if err := m.features(h[:n]); err != nil {
			return nil, err
		}
	default:
		return nil, unsupported("version %d", version)
	}
	if err := m.refuseOthers(h); err != nil {
		return nil, err
	}
	return m, m.geometry(h, most)
}

func (m *Image) features(h []byte) error {
	f := binary.BigEndian.Uint64(h[72:])
	switch {
	case f&externalData != 0:
		return unsupported("its data is in an external data file: convert it with qemu-img convert")
	case f&corrupt != 0:
		return errMalformed("it is marked as corrupt: repair it with qemu-img check")
	case f&extendedL2 != 0:
		return unsupported("extended L2 entries (subclusters): convert it with qemu-img convert")
	case f&^(dirty|compression) != 0:
		return unsupported("incompatible features %#x", f&^(dirty|compression))
	case f&compression == 0:
		return nil
	}
	if binary.BigEndian.Uint32(h[100:]) <= headerV3 || len(h) < headerV3+1 {
		return errMalformed("its header does not say how it is compressed")
	}
	if kind := h[104]; kind > 1 {
		return unsupported("compression type %d", kind)
	}
	m.zstd = h[104] == 1
	return nil
}

func (m *Image) refuseOthers(h []byte) error {
	if at := binary.BigEndian.Uint64(h[8:]); at != 0 {
		size := min(binary.BigEndian.Uint32(h[16:]), maxNamedBytes)
		name := make([]byte, size)
		n := 0
		if at < uint64(m.length) {
			n, _ = m.file.ReadAt(name, int64(at)) // for the message alone
		}
		return unsupported("it has backing file %q, and an image brings one disk: join them with qemu-img convert", name[:n])
	}
	if method := binary.BigEndian.Uint32(h[32:]); method != 0 {
		return unsupported("it is encrypted (method %d): decrypt it with qemu-img convert", method)
	}
	return nil
}

func (m *Image) geometry(h []byte, most int64) error {
	m.bits = uint(binary.BigEndian.Uint32(h[20:]))
	size := binary.BigEndian.Uint64(h[24:])
	entries, at := binary.BigEndian.Uint32(h[36:]), binary.BigEndian.Uint64(h[40:])
	if m.bits < minBits || m.bits > maxBits {
		return errMalformed("clusters of 2^%d bytes", m.bits)
	}
	if size == 0 || size > uint64(most) {
		return fmt.Errorf("qcow2: a disk of %d bytes: need 1 to %d: %w", size, most, errdefs.ErrInvalidArgument)
	}
	m.Size = int64(size)
	perEntry := uint64(1) << (2*m.bits - 3)
	want := (size + perEntry - 1) / perEntry
	if uint64(entries) < want || want*8 > maxL1 {
		return errMalformed("its first table has %d entries, a disk of %d bytes needs %d, and there may be %d", entries, size,
			want, maxL1/8)
	}
	if at > uint64(m.length) || want*8 > uint64(m.length)-at {
		return errMalformed("its first table is cut") // before memory is taken for it
	}
	table := make([]byte, 8*want)
	if err := m.readAt(table, at); err != nil {
		return err
	}
	m.l1 = make([]uint64, want)
	for i := range m.l1 {
		m.l1[i] = binary.BigEndian.Uint64(table[8*i:])
	}
	return nil
}

// readAt fills buf from a place in the file that the image names.
func (m *Image) readAt(buf []byte, at uint64) error {
	if at > uint64(m.length) || uint64(len(buf)) > uint64(m.length)-at {
		return errMalformed("it names %d bytes at %d and has %d: it is cut", len(buf), at, m.length)
	}
	if _, err := m.file.ReadAt(buf, int64(at)); err != nil {
		return fmt.Errorf("read qcow2: %w", err)
	}
	return nil
}

func errMalformed(format string, args ...any) error {
	return fmt.Errorf("qcow2: "+format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("qcow2: "+format+": %w", append(args, errdefs.ErrNotImplemented)...)
}
