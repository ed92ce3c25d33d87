package vmdisk

import (
	"bytes"
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

const (
	chunk = 1 << 20
	block = 64 << 10 // what is all zeros becomes a hole
)

var zeros = make([]byte, block)

// copySparse copies size bytes and leaves out what is zero, in holes or not: archives
// bring disks without their holes.
func copySparse(ctx context.Context, to, from *os.File, size int64) error {
	if err := to.Truncate(size); err != nil {
		return err
	}
	buf := make([]byte, chunk)
	for at := int64(0); at < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		data, err := from.Seek(at, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO):
			return nil // a hole up to the end
		case err != nil: // a file system without holes
			data = at
		}
		at = data
		n := int(min(chunk-at%chunk, size-at))
		if _, err := from.ReadAt(buf[:n], at); err != nil {
			return err
		}
		if err := writeSparse(to, at, buf[:n]); err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

// writeSparse writes the blocks of data that are not all zeros.
func writeSparse(to *os.File, at int64, data []byte) error {
	for len(data) > 0 {
		n := min(block-int(at%block), len(data))
		if !bytes.Equal(data[:n], zeros[:n]) {
			if _, err := to.WriteAt(data[:n], at); err != nil {
				return err
			}
		}
		data, at = data[n:], at+int64(n)
	}
	return nil
}
