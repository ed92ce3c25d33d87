package track

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Of linux/userfaultfd.h.
const (
	ioctlWake       = 0x8010aa02
	ioctlCopy       = 0xc028aa03
	missingShmem    = 1 << 5
	registerMissing = 1 << 0
	copyWP          = 1 << 1
	eventPagefault  = 0x12
	messageSize     = 32
	messages        = 64 // read at a time
)

type copyArg struct {
	dst, src, length, mode uint64
	copied                 int64
}

// Expect has the kernel hold each thread of process pid that touches a page of its RAM, until a
// Missing brings that page. That includes the kernel itself. What it writes is noted from its first
// instruction on. RAM was emptied by Empty before the process had it. If it has any page, the process has touched it
// already: that is FailedPrecondition.
func Expect(pid, userfault int, ram *os.File) error {
	f, regions, err := Find(pid, userfault, ram)
	if err != nil {
		return err
	}
	defer f.Close()
	u := &uffd{regions: regions, files: f}
	if err := u.handshake(missingShmem); err != nil {
		return err
	}
	if err := u.register(registerMissing | registerWP); err != nil {
		return err
	}
	if err := untouched(ram); err != nil {
		return errors.Join(err, u.Stop())
	}
	return nil
}

// Empty drops what a file of RAM holds.
func Empty(ram *os.File) error {
	info, err := ram.Stat()
	if err == nil && info.Size() > 0 {
		err = unix.Fallocate(int(ram.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, info.Size())
	}
	if err != nil {
		return fmt.Errorf("empty RAM file: %w", err)
	}
	return nil
}

func untouched(ram *os.File) error {
	at, err := unix.Seek(int(ram.Fd()), 0, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return nil
	case err != nil:
		return fmt.Errorf("look for data in RAM: %w", err)
	}
	return fmt.Errorf("the VMM has touched RAM at %#x, before a page could come: %w", at, errdefs.ErrFailedPrecondition)
}

// ErrRemapped is of a process that has mapped its RAM anew: no page is waited for any more, and no notes are taken.
var ErrRemapped = errors.New("RAM was mapped anew, and is not waited for")

// CheckRegistered answers ErrRemapped if no part of the RAM of a process, which Find has found, is registered.
func CheckRegistered(f Files, regions []Region) error {
	for _, r := range regions {
		w := walker{[]Region{r}, f.Pagemap, make([]scanned, 1)}
		err := w.walk(r.Offset, r.Offset+pageSize, func(_, _ int64) {}, scanArg{flags: scanCheckAsync,
			categoryMask: pageIsWritten, categoryReturn: pageIsWritten})
		if !errors.Is(err, unix.EPERM) { // the kernel's answer of a mapping that is not registered
			return err
		}
	}
	return ErrRemapped
}

// Missing brings the pages of RAM that Expect has made wait. There may be one at a time, each
// in a process of its own: what one has not brought the next one does.
type Missing struct {
	regions []Region
	fault   *os.File
}

// NewMissing takes over from one that is gone, which may have been asked for pages that it never
// brought: who waits asks again.
func NewMissing(regions []Region, fault *os.File) (*Missing, error) {
	m := &Missing{regions: regions, fault: fault}
	for _, r := range regions {
		if err := m.wake(r.arg()); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Serve calls fault for each page that somebody waits for, by its offset in the RAM file, until
// ctx ends: fault must not wait. A page may be told more than once, also when it is there.
func (m *Missing) Serve(ctx context.Context, fault func(offset int64)) error {
	raw, err := m.fault.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = m.serve(ctx, int(fd), fault) })
	return errors.Join(err, failed)
}

func (m *Missing) serve(ctx context.Context, fd int, fault func(offset int64)) error {
	// A userfaultfd that blocks cannot be waited for; the process that passed it on may have made it
	// one.
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("read faults: %w", err)
	}
	over, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("read faults: %w", err)
	}
	defer unix.Close(over)
	told := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(told)
		_, _ = unix.Write(over, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // what fails is only a full counter
	})
	defer func() {
		if !stop() {
			<-told
		}
	}()
	buf := make([]byte, messages*messageSize)
	for ctx.Err() == nil {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EAGAIN) {
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(over), Events: unix.POLLIN}}, -1)
			n = 0
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("read faults: %w", err)
		}
		for at := 0; at+messageSize <= n; at += messageSize {
			if buf[at] != eventPagefault {
				continue
			}
			address := binary.LittleEndian.Uint64(buf[at+16:]) &^ (pageSize - 1)
			for _, r := range m.regions {
				if address >= r.Address && address-r.Address < uint64(r.Length) {
					fault(r.Offset + int64(address-r.Address))
				}
			}
		}
	}
	return context.Cause(ctx)
}

// Put brings pages, from offset of the RAM file on. A page that is there stays as it is, since
// it may have been written, and who waits for it goes on.
func (m *Missing) Put(offset int64, data []byte) error {
	for len(data) > 0 {
		r, err := m.at(offset)
		if err != nil {
			return err
		}
		n := min(int64(len(data)), r.Offset+r.Length-offset)
		if err := m.copy(r.Address+uint64(offset-r.Offset), data[:n]); err != nil {
			return fmt.Errorf("bring RAM at %#x: %w", offset, err)
		}
		offset, data = offset+n, data[n:]
	}
	return nil
}

var noPage [pageSize]byte

// Zero brings a page without content.
func (m *Missing) Zero(offset int64) error { return m.Put(offset, noPage[:]) }

func (m *Missing) at(offset int64) (Region, error) {
	for _, r := range m.regions {
		if offset >= r.Offset && offset < r.Offset+r.Length {
			return r, nil
		}
	}
	return Region{}, fmt.Errorf("RAM has no %#x: %w", offset, errdefs.ErrOutOfRange)
}

// copy has the kernel put pages into the process, each once and protected.
func (m *Missing) copy(to uint64, data []byte) error {
	for len(data) > 0 {
		arg := &copyArg{dst: to, src: uint64(uintptr(unsafe.Pointer(&data[0]))), length: uint64(len(data)), mode: copyWP}
		err := ioctlOnce(m.fault, ioctlCopy, unsafe.Pointer(arg))
		runtime.KeepAlive(data)
		done := uint64(max(arg.copied, 0))
		switch {
		case err == nil:
			done = uint64(len(data))
		case errors.Is(err, unix.EEXIST):
			// Somebody was faster; who waits for this answer does not hear of it otherwise.
			if err := m.wake(rangeArg{to, pageSize}); err != nil {
				return err
			}
			done = pageSize
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			if done == 0 { // the address space of the process is changing
				runtime.Gosched()
			}
		case errors.Is(err, unix.ESRCH):
			return fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
		default:
			return err
		}
		to, data = to+done, data[done:]
	}
	return nil
}

func (m *Missing) wake(r rangeArg) error {
	if err := ioctl(m.fault, ioctlWake, unsafe.Pointer(&r)); err != nil {
		return fmt.Errorf("wake who waits for pages: %w", err)
	}
	return nil
}

// Whole ends what Expect has begun, of a process that stands still and whose RAM is there. From
// here on a page without content is zero, and no Missing is asked. The notes of what was written
// go on. After an error they do not: then they must not be used.
func Whole(pid, userfault int, ram *os.File) error {
	f, regions, err := Find(pid, userfault, ram)
	if err != nil {
		return err
	}
	defer f.Close()
	u := &uffd{regions: regions, files: f}
	var written spans
	err = u.look(func(offset, end int64) { written = append(written, Span{offset, end}) })
	// A range keeps the modes that it has: it has to be left, which forgets the notes.
	if err := errors.Join(err, u.Stop()); err != nil {
		return err
	}
	if err := u.register(registerWP); err != nil {
		return err
	}
	if err := u.protect(ram, written.sorted(), pageSize); err != nil {
		return errors.Join(err, u.Stop())
	}
	return nil
}

// look is scan that arms nothing.
func (u *uffd) look(written func(offset, end int64)) error {
	w := u.walker()
	err := w.walk(0, math.MaxInt64, written, scanArg{flags: scanCheckAsync, categoryMask: pageIsWritten,
		categoryReturn: pageIsWritten})
	if err == nil {
		err = w.walk(0, math.MaxInt64, written, taken)
	}
	return err
}
