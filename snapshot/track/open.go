package track

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Open opens what tracks the RAM of process pid by way. Userfault is the number of its
// userfaultfd there.
func Open(way Way, pid, userfault int) (f Files, err error) {
	defer func() {
		if err != nil {
			f.Close()
			f, err = Files{}, fmt.Errorf("track by %s: %w", way, err)
		}
	}()
	if way == Content {
		return f, nil
	}
	dir := fmt.Sprintf("/proc/%d/", pid)
	if f.Pagemap, err = os.Open(dir + "pagemap"); err != nil {
		return f, err
	}
	switch way {
	case SoftDirty:
		if f.Vmstat, err = os.Open("/proc/vmstat"); err != nil {
			return f, err
		}
		f.Clear, err = os.OpenFile(dir+"clear_refs", os.O_WRONLY, 0)
	case UFFD:
		f.Fault, err = take(pid, userfault)
	default:
		err = fmt.Errorf("unknown: %w", errdefs.ErrInvalidArgument)
	}
	return f, err
}

// Close closes what is open.
func (f Files) Close() {
	for _, file := range []*os.File{f.Pagemap, f.Fault, f.Clear, f.Vmstat} {
		if file != nil {
			file.Close()
		}
	}
}

// take duplicates the userfaultfd of a process.
func take(pid, number int) (*os.File, error) {
	if number == 0 {
		return nil, fmt.Errorf("the process was given no userfaultfd: %w", errdefs.ErrNotFound)
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w: %w", pid, errdefs.ErrNotFound, err)
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, number, 0)
	if err != nil {
		return nil, fmt.Errorf("take descriptor %d of process %d: %w: %w", number, pid, errdefs.ErrNotFound, err)
	}
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil || !strings.Contains(name, "[userfaultfd]") {
		err = fmt.Errorf("descriptor %d of process %d is %q now: %w", number, pid, name, errdefs.ErrNotFound)
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "userfaultfd"), nil
}

// Regions answers where process pid has mapped the file. It must have mapped all of it,
// shared: what it writes elsewhere is not seen.
func Regions(pid int, ram *os.File) ([]Region, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(ram.Fd()), &st); err != nil {
		return nil, fmt.Errorf("look at RAM file: %w", err)
	}
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, fmt.Errorf("read maps of process %d: %w", pid, err)
	}
	defer maps.Close()
	list, err := parseMaps(maps, fmt.Sprintf("%02x:%02x", unix.Major(st.Dev), unix.Minor(st.Dev)), st.Ino)
	if err != nil {
		return nil, fmt.Errorf("read maps of process %d: %w", pid, err)
	}
	slices.SortFunc(list, func(a, b Region) int { return int(min(1, max(-1, a.Offset-b.Offset))) })
	var end int64
	for _, r := range list {
		if r.Offset > end {
			break
		}
		end = max(end, r.Offset+r.Length)
	}
	if end < st.Size {
		return nil, fmt.Errorf("process %d has mapped %d of %d bytes of RAM: %w", pid, end, st.Size,
			errdefs.ErrFailedPrecondition)
	}
	return list, nil
}

// parseMaps finds the writable mappings of a file.
func parseMaps(r io.Reader, device string, inode uint64) ([]Region, error) {
	var list []Region
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) < 5 || string(fields[3]) != device || string(fields[4]) != fmt.Sprint(inode) {
			continue
		}
		var start, end uint64
		var offset int64
		if _, err := fmt.Sscanf(string(fields[0]), "%x-%x", &start, &end); err != nil {
			return nil, fmt.Errorf("line %q: %w", lines.Bytes(), err)
		}
		if _, err := fmt.Sscanf(string(fields[2]), "%x", &offset); err != nil {
			return nil, fmt.Errorf("line %q: %w", lines.Bytes(), err)
		}
		access := string(fields[1])
		if !strings.Contains(access, "w") {
			continue
		}
		if !strings.HasSuffix(access, "s") {
			return nil, fmt.Errorf("RAM is mapped %s at %#x, not shared: %w", access, start, errdefs.ErrFailedPrecondition)
		}
		list = append(list, Region{Address: start, Offset: offset, Length: int64(end - start)})
	}
	return list, lines.Err()
}

// Find opens what a tracker by userfaultfd needs of process pid, and finds its RAM there.
func Find(pid, userfault int, ram *os.File) (Files, []Region, error) {
	f, err := Open(UFFD, pid, userfault)
	if err != nil {
		return Files{}, nil, err
	}
	regions, err := Regions(pid, ram)
	if err != nil {
		f.Close()
		return Files{}, nil, err
	}
	return f, regions, nil
}

// Arm has the kernel note from now on what process pid writes to its RAM, for a tracker to come:
// Continue. A page whose note is lost, with the ranges or with the process, counts as written
// there. So does a page that the file does not have yet.
func Arm(pid, userfault int, ram *os.File) error {
	f, regions, err := Find(pid, userfault, ram)
	if err != nil {
		return err
	}
	defer f.Close()
	f.RAM = ram
	u, err := newUFFD(regions, f)
	if err != nil {
		return err
	}
	if err := u.armData(); err != nil {
		return errors.Join(err, u.Stop())
	}
	return nil
}

// Release has process pid run on as if its RAM had never been tracked, also after a
// tracker that was killed.
func Release(pid, userfault int, ram *os.File) error {
	f, regions, err := Find(pid, userfault, ram)
	if err != nil {
		return err
	}
	defer f.Close()
	return (&uffd{regions: regions, files: f}).Stop()
}
