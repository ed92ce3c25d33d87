package bundle

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

const (
	// MaxSynced bounds the content of a volume whose files are kept fresh.
	MaxSynced = 4 << 20
	// MaxSyncedFiles bounds their number.
	MaxSyncedFiles = 1_000
	// maxSyncedEntries bounds files, directories and links together.
	maxSyncedEntries = 4 * MaxSyncedFiles
)

// newest is the link that a kubelet replaces last, when all other files of a version are there.
const newest = "..data"

// changes is how often a volume may change while it is read.
const changes = 5

// Files reads a volume of kind synced: paths below it, "/" for itself. All files are of one version
// where a kubelet writes them. ResourceExhausted: it is too large to be kept fresh.
func (v Volume) Files() ([]*agentv1.File, error) {
	for try := 0; ; try++ {
		before, err := version(v.Source)
		if err != nil {
			return nil, fmt.Errorf("read volume %s: %w", filepath.Base(v.Source), err)
		}
		files, err := v.read(true)
		after, verr := version(v.Source)
		switch {
		case verr == nil && before == after && err == nil:
			return files, nil
		case errdefs.IsResourceExhausted(err) || errdefs.IsNotImplemented(err):
			return nil, err
		case try >= changes && err == nil && verr == nil:
			return nil, fmt.Errorf("read volume %s: it changes all the time: %w", filepath.Base(v.Source),
				errdefs.ErrUnavailable)
		case try >= changes || verr != nil || before == after:
			return nil, fmt.Errorf("read volume %s: %w", filepath.Base(v.Source), errors.Join(err, verr))
		}
	}
}

// version is where the newest files of a kubelet are; empty: there is no such link.
func version(dir string) (string, error) {
	to, err := os.Readlink(filepath.Join(dir, newest))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) {
		return "", nil
	}
	return to, err
}

// fits refuses what is too large, without reading it.
func (v Volume) fits() error {
	_, err := v.read(false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it changes at this moment; who reads it looks again
	}
	return err
}

func (v Volume) read(content bool) (files []*agentv1.File, err error) {
	var size int64
	var count, all int
	source := Copy{Source: v.Source, Destination: "/"}
	err = source.walk(func(e *entry) error {
		if all++; e.kind() == unix.S_IFREG {
			size, count = size+e.st.Size, count+1
		}
		if size > MaxSynced || count > MaxSyncedFiles || all > maxSyncedEntries {
			return v.tooLarge()
		}
		if !content {
			return nil
		}
		f := &agentv1.File{Path: path.Join("/", e.name), Mode: e.st.Mode, Uid: e.st.Uid, Gid: e.st.Gid,
			MtimeUnixNano: e.st.Mtim.Nano()}
		switch e.kind() {
		case unix.S_IFLNK:
			f.Link, err = e.link()
		case unix.S_IFREG:
			size -= e.st.Size
			f.Data, err = e.content(MaxSynced - size)
			size += int64(len(f.Data))
		}
		if size > MaxSynced {
			return v.tooLarge()
		}
		files = append(files, f)
		return err
	})
	return files, err
}

func (v Volume) tooLarge() error {
	return fmt.Errorf("volume %s: it has more than %d MiB or %d files, the most that is kept fresh in a VM: divide it, "+
		"or put the data into the image: %w", filepath.Base(v.Source), MaxSynced>>20, MaxSyncedFiles,
		errdefs.ErrResourceExhausted)
}

// content reads a file, and one byte more than limit where it is larger.
func (e *entry) content(limit int64) ([]byte, error) {
	f, err := e.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit+1))
}
