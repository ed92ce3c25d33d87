package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// baseline compresses and expands the resident bytes of the node's one RAM file with zstd -1 on one core. It answers
// CPU seconds of both and the bytes.
func (b *bench) baseline(ctx context.Context) (compress, expand, size float64, err error) {
	dir, err := os.MkdirTemp("/dev/shm", "bench")
	if err != nil {
		return 0, 0, 0, err
	}
	defer os.RemoveAll(dir)
	plain, packed := filepath.Join(dir, "ram"), filepath.Join(dir, "ram.zst")
	n, err := b.copyRAM(plain)
	if err != nil {
		return 0, 0, 0, fmt.Errorf("copy RAM: %w", err)
	}
	if compress, err = cpuOf(ctx, "zstd", "-q", "-1", "-T1", plain, "-o", packed); err != nil {
		return 0, 0, 0, err
	}
	if err := os.Remove(plain); err != nil {
		return 0, 0, 0, err
	}
	if expand, err = cpuOf(ctx, "zstd", "-q", "-d", packed, "-o", plain); err != nil {
		return 0, 0, 0, err
	}
	return compress, expand, float64(n), nil
}

// ramFile is the one RAM file of the node.
func (b *bench) ramFile() (string, error) {
	file := ""
	err := filepath.WalkDir(fmt.Sprintf("/proc/%d/root%s/ram", b.node.PID(), b.node.Dir),
		func(path string, d fs.DirEntry, err error) error {
			if info, e := d.Info(); err == nil && e == nil && info.Mode().IsRegular() && info.Size() >= int64(sizes[0])<<20 {
				file = path
			}
			return err
		})
	if err == nil && file == "" {
		err = errors.New("no RAM file on the node")
	}
	return file, err
}

// copyRAM writes the parts of the RAM file that are in use one after the other.
func (b *bench) copyRAM(to string) (int64, error) {
	from, err := b.ramFile()
	if err != nil {
		return 0, err
	}
	src, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return 0, err
	}
	defer dst.Close()
	return copyData(dst, src)
}

// copyData copies what is not a hole.
func copyData(dst io.Writer, src *os.File) (int64, error) {
	return eachExtent(src, func(offset, end int64) error {
		_, err := io.Copy(dst, io.NewSectionReader(src, offset, end-offset))
		return err
	})
}

// eachExtent calls do for what is not a hole, and answers how many bytes that are.
func eachExtent(f *os.File, do func(offset, end int64) error) (int64, error) {
	var total, at int64
	for {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		if at, err = unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE); err != nil {
			return total, err
		}
		total += at - data
		if err := do(data, at); err != nil {
			return total, err
		}
	}
}

// cpuOf runs a program and answers the CPU time it took.
func cpuOf(ctx context.Context, name string, args ...string) (float64, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), nil
}
