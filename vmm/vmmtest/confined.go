package vmmtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm"
)

// Confined tells whether every thread of a VMM is its user's, has no rights beyond,
// and can gain none, and whether the process is alone: among pids, mounts, System V IPC and, as a VM without a NIC, on
// the network. Those that filter accepts have a filter for their calls; nil: all.
func Confined(pid, user int, filtered func(thread string) bool) error {
	return confined(pid, user, filtered, room{})
}

// room is what a VMM has around it.
type room struct {
	network bool // of its taps, or of those that it may get
	hot     bool // a directory of disks that were plugged in
}

func confined(pid, user int, filtered func(thread string) bool, r room) error {
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(paths) < 2 {
		return fmt.Errorf("%d threads: %w", len(paths), err)
	}
	errs := []error{alone(pid, r)}
	for _, path := range paths {
		status, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		id := strconv.Itoa(user)
		wanted := []string{
			"NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapAmb:\t0000000000000000",
			"CapBnd:\t0000000000000000", "CapInh:\t0000000000000000",
			"Uid:\t" + strings.Join([]string{id, id, id, id}, "\t"), "Gid:\t" + strings.Join([]string{id, id, id, id}, "\t"),
		}
		name, rest, _ := strings.Cut(string(status), "\n")
		if filtered == nil || filtered(filepath.Base(filepath.Dir(path))) {
			wanted = append(wanted, "Seccomp:\t2")
		}
		for _, want := range wanted {
			if !strings.Contains(rest, "\n"+want+"\n") {
				errs = append(errs, fmt.Errorf("%s: no %q", name, want))
			}
		}
	}
	return errors.Join(errs...)
}

// AllThreads and ButTheFirst are for Env.Filtered. The first thread of Cloud Hypervisor does nothing but wait for the
// others, and has no filter.
func AllThreads(int, string) bool { return true }

// ButTheFirst is of Cloud Hypervisor.
func ButTheFirst(pid int, thread string) bool { return thread != strconv.Itoa(pid) }

// alone tells whether a process has namespaces of its own and leaves no core. Its root may have
// at most its own /dev and /proc.
func alone(pid int, r room) error {
	var errs []error
	of := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	namespaces := []string{"pid", "mnt", "ipc"}
	if !r.network {
		namespaces = append(namespaces, "net")
	}
	for _, ns := range namespaces {
		mine, err := os.Readlink("/proc/self/ns/" + ns)
		theirs, other := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
		if err := errors.Join(err, other); err != nil || mine == theirs {
			of("its %s namespace is the caller's: %w", ns, err)
		}
	}
	for _, link := range []string{"root", "cwd"} {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", pid, link))
		if err != nil {
			of("%s: %w", link, err)
		}
		for _, e := range entries {
			if e.Name() != "dev" && e.Name() != "proc" && (e.Name() != "hot" || !r.hot) {
				of("its %s has %s", link, e.Name())
			}
		}
		if f, err := os.Create(fmt.Sprintf("/proc/%d/%s/new", pid, link)); err == nil {
			f.Close()
			of("its %s can be written to", link)
		}
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	for line := range strings.Lines(string(limits)) {
		if rest, ok := strings.CutPrefix(line, "Max core file size"); ok &&
			!strings.HasPrefix(strings.TrimSpace(rest), "0 ") {
			of("core dumps: %s", rest)
		}
	}
	return errors.Join(append(errs, err)...)
}

// Observed tells whether root can still do with a VMM of another user's, started with
// Track, what the tracking of its RAM needs: read which pages it has, forget which it has
// written, share its userfaultfd and protect pages with it.
func Observed(p vmm.Process, ram *os.File) error {
	pid := p.PID
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	var begin uint64
	for line := range bytes.Lines(maps) {
		if bytes.HasSuffix(bytes.TrimSpace(line), []byte(ram.Name())) {
			hex, _, _ := strings.Cut(string(line), "-")
			if begin, err = strconv.ParseUint(hex, 16, 64); err != nil {
				return err
			}
			break
		}
	}
	if begin == 0 {
		return errors.New("RAM is not mapped: " + ram.Name())
	}
	pagemap, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return err
	}
	defer pagemap.Close()
	if _, err := pagemap.ReadAt(make([]byte, 8), int64(begin/uint64(os.Getpagesize())*8)); err != nil {
		return err
	}
	// 4: soft-dirty bits, which a kernel may not have; 1: those of the accessed pages.
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("1"), 0); err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if p.Userfault == 0 {
		return errors.New("it has no userfaultfd")
	}
	shared, err := unix.PidfdGetfd(fd, p.Userfault, 0)
	if err != nil {
		return fmt.Errorf("pidfd_getfd: %w", err)
	}
	defer unix.Close(shared)
	return protect(shared, begin)
}

// protect watches the first page of RAM, without anybody being asked.
func protect(fd int, page uint64) error {
	const (
		ioctlAPI, ioctlRegister = 0xc018aa3f, 0xc020aa00
		wpAsync, wpMode         = 1<<15 | 1<<13 | 1<<12, 2
	)
	api := [3]uint64{0xaa, wpAsync, 0}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ioctlAPI, uintptr(unsafe.Pointer(&api))); errno != 0 {
		return fmt.Errorf("UFFDIO_API: %w", errno)
	}
	register := [4]uint64{page, uint64(os.Getpagesize()), wpMode, 0}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ioctlRegister,
		uintptr(unsafe.Pointer(&register))); errno != 0 {
		return fmt.Errorf("UFFDIO_REGISTER: %w", errno)
	}
	return nil
}
