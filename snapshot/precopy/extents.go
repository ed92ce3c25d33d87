package precopy

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/format"
)

// Extents calls do for each range of f that may hold data, in whole pages but for the
// last.
func Extents(f *os.File, size int64, do func(offset, end int64) error) error {
	var next int64
	for next < size {
		data, hole, err := nextData(f, next)
		if err != nil {
			return err
		}
		if data < 0 || data >= size {
			return nil
		}
		start := max(next, data/format.PageSize*format.PageSize)
		end := min(size, (hole+format.PageSize-1)/format.PageSize*format.PageSize)
		if err := do(start, end); err != nil {
			return err
		}
		next = end
	}
	return nil
}

// nextData returns the next range of f at or after offset that is not a hole; data is
// negative if there is none.
func nextData(f *os.File, offset int64) (data, hole int64, err error) {
	data, err = SeekData(f, offset)
	if err != nil || data == NoData {
		return -1, 0, err
	}
	hole, err = unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
	return data, hole, os.NewSyscallError("lseek SEEK_HOLE", err)
}

// NoData is what SeekData answers where no data follows.
const NoData = math.MaxInt64

// SeekData returns where the next data at or after offset is.
func SeekData(f *os.File, offset int64) (int64, error) {
	data, err := unix.Seek(int(f.Fd()), offset, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return NoData, nil
	}
	return data, os.NewSyscallError("lseek SEEK_DATA", err)
}
