package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Namespaces lists the network namespaces of this host but the caller's own, by a path each: those that a process lives
// in, and those that have a name in the file system. In addition to an error it answers those that it could look at.
func Namespaces() ([]string, error) {
	own, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	paths, err := ofProcesses()
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	for _, line := range strings.Split(string(mounts), "\n") {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[3], "net:[") {
			paths = append(paths, f[4])
		}
	}
	return distinct(paths, own)
}

// ofProcesses are the paths of the namespaces that processes live in.
func ofProcesses() (paths []string, err error) {
	processes, err := os.ReadDir("/proc")
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err == nil {
			paths = append(paths, filepath.Join("/proc", p.Name(), "ns", "net"))
		}
	}
	return paths, err
}

// distinct answers a path for each file but own, and an error for those that it could not look at.
func distinct(paths []string, own os.FileInfo) ([]string, error) {
	var out []string
	var errs []error
	seen := []os.FileInfo{own}
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH): // gone meanwhile
		case errors.Is(err, fs.ErrPermission): // a user who may not look at it has made no tap there
		case err != nil:
			errs = append(errs, fmt.Errorf("look at network namespace: %w", err))
		case !slices.ContainsFunc(seen, func(s os.FileInfo) bool { return os.SameFile(s, info) }):
			seen, out = append(seen, info), append(out, path)
		}
	}
	return out, errors.Join(errs...)
}

// Orphans deletes the taps of owners that known denies, and the redirects that lead to them, and gives the owners it
// found. The addresses come back only with Detach: they are known nowhere else. A tap that a process has open is no
// orphan, whatever known says: another node of that name may have made it. One that cannot be opened is not proven
// to be an orphan.
func Orphans(ctx context.Context, netnsPath string, known func(Owner) bool) (removed []Owner, err error) {
	s, err := lockedSession(ctx, netnsPath)
	if err != nil {
		return nil, err
	}
	defer s.close()
	all, err := dump(s.nl.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces of %s: %w", netnsPath, err)
	}
	for _, l := range all {
		owner, ours := parseAlias(l.Attrs().Alias)
		if l.Type() != "tuntap" || !ours || known(owner) {
			continue
		}
		name := l.Attrs().Name
		tap, e := s.openTap(name, tapFlags) // it has one queue: who has it open keeps others out
		if errdefs.IsFailedPrecondition(e) {
			continue
		}
		if e == nil {
			e = s.step(ctx, "delete orphaned tap", name, func() error { return s.orphan(l, all) })
			e = errors.Join(e, tap.Close())
		} else {
			e = fmt.Errorf("look whether tap %s is open: %w", name, e)
		}
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		removed = append(removed, owner)
	}
	return removed, err
}

func (s *session) orphan(tap netlink.Link, all []netlink.Link) error {
	// The tap goes first: it is the fence. Its number stays in the redirects' list
	// only until then, so look for them before.
	var joined []netlink.Link
	for _, l := range all {
		q, err := s.ingress(l)
		if err != nil {
			return err
		} else if q == nil || l.Attrs().Index == tap.Attrs().Index {
			continue
		}
		targets, err := s.redirects(l, nil)
		if err != nil {
			return err
		}
		if len(targets) == 1 && targets[0] == tap.Attrs().Index {
			joined = append(joined, l)
		}
	}
	errs := []error{ignoreMissing(s.nl.LinkDel(tap))}
	for _, l := range joined {
		errs = append(errs, s.unredirect(l))
	}
	return errors.Join(errs...)
}
