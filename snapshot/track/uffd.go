package track

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Of linux/userfaultfd.h and linux/fs.h.
const (
	ioctlAPI          = 0xc018aa3f
	ioctlRegister     = 0xc020aa00
	ioctlUnregister   = 0x8010aa01
	ioctlWriteProtect = 0xc018aa06
	ioctlPagemapScan  = 0xc0606610

	uffdAPI         = 0xaa
	wpHugetlbShmem  = 1 << 12
	wpUnpopulated   = 1 << 13
	wpAsync         = 1 << 15
	registerWP      = 1 << 1
	writeProtectWP  = 1 << 0
	scanWPMatching  = 1 << 0
	scanCheckAsync  = 1 << 1
	pageIsWritten   = 1 << 1
	pageIsPresent   = 1 << 3
	pageIsSwapped   = 1 << 4
	scanRegions     = 4096
	scanArgSize     = 96
	mostInterrupted = 1000
)

type (
	apiArg      struct{ api, features, ioctls uint64 }
	rangeArg    struct{ start, length uint64 }
	registerArg struct {
		rangeArg
		mode, ioctls uint64
	}
	protectArg struct {
		rangeArg
		mode uint64
	}
	scanArg struct {
		size, flags, start, end, walkEnd, vec, vecLen, maxPages           uint64
		categoryInverted, categoryMask, categoryAnyOfMask, categoryReturn uint64
	}
	scanned struct{ start, end, categories uint64 }
)

// uffd has the kernel note the first write to each page since it was armed. Reading the
// notes and arming again is one step of the kernel for each page table.
type uffd struct {
	regions []Region
	files   Files
	armed   bool   // what was armed is to be read: by Arm (Continue), or by the first Next
	begun   bool   // armData has succeeded
	tables  []bool // of page table entries, by their place in the file: the kernel may have notes there
}

func newUFFD(regions []Region, f Files) (*uffd, error) {
	u := &uffd{regions: regions, files: f}
	for _, r := range regions {
		u.tables = append(u.tables, make([]bool, max(0, (r.Offset+r.Length+tableSpan-1)/tableSpan-int64(len(u.tables))))...)
	}
	if err := u.handshake(0); err != nil {
		return nil, err
	}
	if err := u.register(registerWP); err != nil {
		return nil, err
	}
	return u, nil
}

// handshake asks for what this package needs, unless a tracker before this one has done so.
func (u *uffd) handshake(more uint64) error {
	arg := &apiArg{api: uffdAPI, features: wpAsync | wpUnpopulated | wpHugetlbShmem | more}
	if err := ioctl(u.files.Fault, ioctlAPI, unsafe.Pointer(arg)); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("userfaultfd: %w", err)
	}
	return nil
}

func (u *uffd) register(mode uint64) error {
	for _, r := range u.regions {
		arg := &registerArg{rangeArg: r.arg(), mode: mode}
		if err := ioctl(u.files.Fault, ioctlRegister, unsafe.Pointer(arg)); err != nil {
			return errors.Join(fmt.Errorf("track %#x: %w: %w", r.Address, errdefs.ErrNotImplemented, err), u.Stop())
		}
	}
	return nil
}

func (r Region) arg() rangeArg { return rangeArg{r.Address, uint64(r.Length)} }

// Next arms at its first call.
func (u *uffd) Next(last bool, written func(offset, end int64)) (bool, error) {
	if !u.begun {
		if err := u.armData(); err != nil {
			return false, err
		}
	}
	if !u.armed {
		// Once without a look at the answer: a scan that is refused is known while the VM runs.
		u.armed = true
		return false, u.scan(false, func(int64, int64) {})
	}
	if err := u.scan(last, written); err != nil {
		return false, err
	}
	return true, nil
}

// armSpan is what one core protects at a time, in bytes of the RAM file.
const armSpan = 64 << 20

// armData protects what the file has data in, unless that was done before. Page tables for the
// rest would cost memory and time, and say nothing: a page that comes there is new, and
// unprotected it counts as written.
func (u *uffd) armData() error {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	err := dataOf(u.files.RAM, 0, func(data, hole int64) (int64, error) {
		from, to := data/tableSpan*tableSpan, (hole+tableSpan-1)/tableSpan*tableSpan
		u.has(from, to)
		for at := from; at < to && !u.armed; at += armSpan {
			g.Go(func() error { return u.arm(at, min(at+armSpan, to)) })
		}
		return to, nil
	})
	err = errors.Join(err, g.Wait())
	u.begun = err == nil
	return err
}

// has notes that there are page tables for a part of the RAM file.
func (u *uffd) has(from, to int64) {
	for i := from / tableSpan; i*tableSpan < to && i < int64(len(u.tables)); i++ {
		u.tables[i] = true
	}
}

// arm protects a part of the RAM file, also what is not in the page table.
func (u *uffd) arm(offset, end int64) error {
	for _, r := range u.regions {
		from, to := max(offset, r.Offset), min(end, r.Offset+r.Length)
		if from >= to {
			continue
		}
		arg := &protectArg{rangeArg: rangeArg{r.Address + uint64(from-r.Offset), uint64(to - from)}, mode: writeProtectWP}
		if err := ioctl(u.files.Fault, ioctlWriteProtect, unsafe.Pointer(arg)); err != nil {
			return fmt.Errorf("arm tracking: %w", err)
		}
	}
	return nil
}

// tableSpan is what one page of page table entries maps.
const tableSpan = 2 << 20

// dataOf calls found for what the file has data in, which answers where to go on.
func dataOf(ram *os.File, at int64, found func(data, hole int64) (next int64, err error)) error {
	for {
		data, err := unix.Seek(int(ram.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		var hole int64
		if err == nil {
			hole, err = unix.Seek(int(ram.Fd()), data, unix.SEEK_HOLE)
		}
		if err != nil {
			return fmt.Errorf("arm tracking: look for data: %w", err)
		}
		if at, err = found(data, hole); err != nil {
			return err
		}
	}
}

// Between is what it is for.
func (u *uffd) Between() bool { return true }

// Stop forgets the ranges. The descriptor stays open in the VMM, for another tracker.
func (u *uffd) Stop() error {
	var errs []error
	for _, r := range u.regions {
		arg := r.arg()
		err := ioctl(u.files.Fault, ioctlUnregister, unsafe.Pointer(&arg))
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ESRCH) { // never registered; gone
			errs = append(errs, fmt.Errorf("stop tracking: %w", err))
		}
	}
	return errors.Join(errs...)
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	_, err := ioctlN(f, request, arg)
	return err
}

// ioctlN repeats what the kernel broke off: the address space of the VMM was changing.
func ioctlN(f *os.File, request uintptr, arg unsafe.Pointer) (n int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctl := raw.Control(func(fd uintptr) {
		for range mostInterrupted {
			if n, err = control(fd, request, arg); !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
				return
			}
		}
	})
	return n, errors.Join(ctl, err)
}

// ioctlOnce is ioctl for who looks at what was done before it was broken off.
func ioctlOnce(f *os.File, request uintptr, arg unsafe.Pointer) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	ctl := raw.Control(func(fd uintptr) { _, err = control(fd, request, arg) })
	return errors.Join(ctl, err)
}

func control(fd, request uintptr, arg unsafe.Pointer) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(arg))
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}
