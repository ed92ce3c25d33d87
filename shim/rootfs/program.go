package rootfs

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Program is what a container is to execute first.
type Program struct {
	Name    string   // as the command names it: with a slash a path, else looked for in Search
	Search  []string // directories of the process's PATH
	Dir     string   // the process's working directory
	Covered []string // paths where the guest sees something else than the root file system
}

// candidates are the paths that the guest tries.
func (p Program) candidates() (all []string) {
	if strings.Contains(p.Name, "/") {
		return []string{path.Join("/", p.below(p.Name))}
	}
	for _, dir := range p.Search {
		all = append(all, path.Join("/", p.below(path.Join(dir, p.Name))))
	}
	return all
}

func (p Program) below(name string) string {
	if path.IsAbs(name) {
		return name
	}
	return path.Join(p.Dir, name)
}

// missing is the error that the guest would have, in the words of os/exec.
func (p Program) missing() error {
	if strings.Contains(p.Name, "/") {
		return fmt.Errorf("exec: %q: stat %s: no such file or directory: %w", p.Name, p.Name, errdefs.ErrNotFound)
	}
	return fmt.Errorf("exec: %q: executable file not found in $PATH: %w", p.Name, errdefs.ErrNotFound)
}

// lacks reports whether the root file system of the mounts is proved to have no such program. What
// cannot be looked at is no proof.
func (c *Cache) lacks(ctx context.Context, mounts []*types.Mount, p Program) (absent bool) {
	err := c.Show(ctx, mounts, func(t Tree) error {
		root, err := os.OpenFile(t.Dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer root.Close()
		w := walker{root: int(root.Fd())}
		var covered []string
		for _, dir := range p.Covered {
			at, _ := w.walk(dir)
			if at == "" {
				return nil
			}
			covered = append(covered, path.Clean(dir), at)
		}
		w.covered = covered
		absent = !slices.ContainsFunc(p.candidates(), func(name string) bool { return !w.absent(name) })
		return nil
	})
	return absent && err == nil
}

// walker follows paths below a root as the guest's kernel would, by symbolic links too.
type walker struct {
	root    int
	covered []string // what lies here is not known
}

// maxLinks is the kernel's, of one path.
const maxLinks = 40

// absent reports whether nothing is there for sure.
func (w *walker) absent(name string) bool {
	at, there := w.walk(name)
	return !there && at != ""
}

// walk answers where a path leads, and whether something is there. Empty: that is not known.
func (w *walker) walk(name string) (at string, there bool) {
	rest, at, links := strings.Split(name, "/"), "/", 0
	for len(rest) > 0 {
		step := rest[0]
		rest = rest[1:]
		if step == "" || step == "." {
			continue
		}
		if step == ".." {
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, step)
		if w.hidden(next) {
			return "", false
		}
		target, err := w.readLink(next)
		switch {
		case err == unix.ENOENT || err == unix.ENOTDIR:
			if w.leads(next) { // the guest makes the directories that lead to a mount
				return "", false
			}
			return path.Join(append([]string{next}, rest...)...), false
		case err != nil:
			return "", false
		case target == "":
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", false
		}
		if path.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at, true
}

// hidden reports whether something else may lie over a path.
func (w *walker) hidden(name string) bool {
	return slices.ContainsFunc(w.covered, func(dir string) bool {
		return name == dir || strings.HasPrefix(name, dir+"/")
	})
}

// leads reports whether something else lies below a path.
func (w *walker) leads(name string) bool {
	return slices.ContainsFunc(w.covered, func(dir string) bool { return strings.HasPrefix(dir, name+"/") })
}

// readLink answers where a symbolic link points; empty: the path is something else.
func (w *walker) readLink(name string) (string, error) {
	fd, err := unix.Openat2(w.root, name[1:], &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", err
	}
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", target)
	if err != nil {
		return "", err
	}
	return string(target[:n]), nil
}
