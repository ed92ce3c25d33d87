package ring

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Kept takes what is left of failed cases, as one tar stream: a file, or a disk of the
// ground, which has no other way out. It is whole after each case.
type Kept struct{ to *tar.Writer }

// NewKept writes to w.
func NewKept(w io.Writer) *Kept { return &Kept{tar.NewWriter(w)} }

// Add adds a directory under its own name. A nil Kept takes nothing.
func (k *Kept) Add(dir string) error {
	if k == nil {
		return nil
	}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // sockets and fifos; what went meanwhile
		}
		data, err := readAtMost(path)
		if err != nil {
			return nil
		}
		name, err := filepath.Rel(filepath.Dir(dir), path)
		if err != nil {
			return err
		}
		if err := k.to.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)),
			Format: tar.FormatPAX}); err != nil {
			return err
		}
		_, err = k.to.Write(data)
		return err
	})
	if err == nil {
		err = k.to.Flush()
	}
	if err != nil {
		return fmt.Errorf("keep what is left in %s: %w", dir, err)
	}
	return nil
}

// keptMost is the size of the largest file that is kept: disks and RAM are not.
const keptMost = 8 << 20

func readAtMost(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() > keptMost {
		return nil, fmt.Errorf("%s is too large", path)
	}
	return io.ReadAll(io.LimitReader(f, keptMost))
}

// Close ends the stream.
func (k *Kept) Close() error { return k.to.Close() }
