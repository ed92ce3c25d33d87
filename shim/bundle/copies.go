package bundle

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
)

const (
	// MaxCopies bounds the content of all bind mounts of a container.
	MaxCopies = 256 << 20
	// MaxCopiedFiles bounds their number.
	MaxCopiedFiles = 20_000
	// batchBytes and batchFiles keep a message well below the 4 MiB of ttrpc.
	batchBytes = 1 << 20
	batchFiles = 2_000
)

// Copy is a bind mount that the guest gets as a copy.
type Copy struct {
	Source      string // on this host, without symbolic links
	Destination string // in the container, clean
	ReadOnly    bool
	Options     []string // of the mount that it becomes in the container, if any
	Mapped      bool     // the owners of its files are ids of the container
	users       *spec.Users
}

// Copies of one container.
type Copies []Copy

// measure refuses what is too much to copy, or cannot be copied, before anything
// starts. It returns how many bytes of it go to the writable disk: those that no mount
// of the guest takes.
func (cs Copies) measure(mounts []specs.Mount) (int64, error) {
	var size, disk int64
	var count int
	for _, c := range cs {
		before, seen := size, inodes{}
		err := c.walk(func(e *entry) error {
			count++
			if _, again := seen.name(e, e.name); e.kind() == unix.S_IFREG && !again {
				size += e.st.Size
			}
			if size > MaxCopies || count > MaxCopiedFiles {
				return fmt.Errorf("mount %s: %s brings the bind mounts over %d MiB or %d files, the most that is copied into a "+
					"VM: put the data into the image: %w",
					c.Destination, c.Source, MaxCopies>>20, MaxCopiedFiles, errdefs.ErrResourceExhausted)
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
		if !slices.ContainsFunc(mounts, func(m specs.Mount) bool { return inside(c.Destination, m.Destination) }) {
			disk += size - before
		}
	}
	return disk, nil
}

func inside(name, dir string) bool {
	dir = path.Clean(dir)
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

// walk calls fn for the source and everything in it. What is neither a file, a directory nor
// a symbolic link is refused.
func (c Copy) walk(fn func(*entry) error) error {
	source, err := holdPath(c.Source)
	if err != nil {
		return fmt.Errorf("mount %s: %w", c.Destination, err)
	}
	defer source.at.Close()
	err = source.each(func(e *entry) error {
		switch e.kind() {
		case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK:
			return fn(e)
		}
		return refused("mount "+c.Destination, path.Join(c.Source, e.name)+" is neither a file, a directory nor a "+
			"symbolic link")
	})
	var failed *fs.PathError
	if errors.As(err, &failed) {
		return fmt.Errorf("mount %s: %s: %w", c.Destination, c.Source, err)
	}
	return err
}

// Read answers the content of a file of at most limit bytes; nil if it is something else.
func (c Copy) Read(limit int64) ([]byte, error) {
	e, err := holdPath(c.Source)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", c.Destination, err)
	}
	defer e.at.Close()
	if e.kind() != unix.S_IFREG || e.st.Size > limit {
		return nil, nil
	}
	f, err := e.open()
	if err != nil {
		return nil, fmt.Errorf("mount %s: %s: %w", c.Destination, c.Source, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit)) // it may grow meanwhile
	if err != nil {
		return nil, fmt.Errorf("mount %s: %s: %w", c.Destination, c.Source, err)
	}
	return data, nil
}

// Select returns the copies for these destinations, such as the files that a wake into
// other addresses renews.
func (cs Copies) Select(destinations ...string) Copies {
	return slices.DeleteFunc(slices.Clone(cs), func(c Copy) bool { return !slices.Contains(destinations, c.Destination) })
}

// Mounts are the copies that are mounts of their own in the container: those with options,
// and those that stay writable, whatever is read-only round them.
func (cs Copies) Mounts() (mounts []*agentv1.Mount) {
	for _, c := range cs {
		if len(c.Options) > 0 || !c.ReadOnly {
			mounts = append(mounts, &agentv1.Mount{Target: c.Destination, Options: c.Options})
		}
	}
	return mounts
}
