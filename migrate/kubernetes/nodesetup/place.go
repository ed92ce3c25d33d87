package nodesetup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
)

// maxLinks is how many symbolic links a path may lead through, as in the kernel.
const maxLinks = 40

// place answers where a path of the node is in this container's mounts. Links on the way are those of the node: an
// absolute one begins at the node's root. The file itself need not be there.
func place(root, path string) (string, error) {
	done, rest, links := "/", strings.Split(filepath.Clean("/"+path), "/"), 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		next := filepath.Join(done, name)
		info, err := os.Lstat(filepath.Join(root, next))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("find %s on the node: %w", path, err)
		}
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("find %s on the node: more than %d links: %w", path, maxLinks,
				errdefs.ErrFailedPrecondition)
		}
		to, err := os.Readlink(filepath.Join(root, next))
		if err != nil {
			return "", fmt.Errorf("find %s on the node: %w", path, err)
		}
		if filepath.IsAbs(to) {
			done = "/"
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	return filepath.Join(root, done), nil
}

// placeOf is where a file of the node is whose name may be a link itself: the directory is found, and the name is kept.
func placeOf(root, file string) (string, error) {
	dir, err := place(root, filepath.Dir(file))
	return filepath.Join(dir, filepath.Base(file)), err
}
