package bpf

import (
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// aio is the kernel's old asynchronous IO.
type aio struct{ context uintptr }

func newAIO(t *testing.T) *aio {
	t.Helper()
	a := &aio{}
	if _, _, e := unix.Syscall(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&a.context)), 0); e != 0 {
		t.Fatal(e)
	}
	t.Cleanup(func() { _, _, _ = unix.Syscall(unix.SYS_IO_DESTROY, a.context, 0, 0) })
	return a
}

func (a *aio) write(fd int, data []byte, at int64) error {
	cb := &struct {
		data           uint64
		key, rwFlags   uint32
		opcode         uint16
		priority       int16
		fd             uint32
		buf, size      uint64
		offset         int64
		reserved       uint64
		flags, eventfd uint32
	}{opcode: 1, fd: uint32(fd), buf: uint64(uintptr(unsafe.Pointer(&data[0]))), size: uint64(len(data)), offset: at}
	list := []unsafe.Pointer{unsafe.Pointer(cb)}
	if _, _, e := unix.Syscall(unix.SYS_IO_SUBMIT, a.context, 1, uintptr(unsafe.Pointer(&list[0]))); e != 0 {
		return e
	}
	var event [4]uint64
	_, _, e := unix.Syscall6(unix.SYS_IO_GETEVENTS, a.context, 1, 1, uintptr(unsafe.Pointer(&event)), 0, 0)
	runtime.KeepAlive(data)
	switch {
	case e != 0:
		return e
	case int64(event[2]) < 0:
		return unix.Errno(-int64(event[2]))
	}
	return nil
}

// ring is an io_uring.
type ring struct {
	fd           int
	sq, cq, sqes []byte
	params       [30]uint32
}

func newRing(t *testing.T) *ring {
	t.Helper()
	r := &ring{}
	fd, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&r.params)), 0)
	if e == unix.ENOSYS || e == unix.EPERM {
		return nil // this host forbids them
	}
	if e != 0 {
		t.Fatal(e)
	}
	r.fd = int(fd)
	t.Cleanup(func() { unix.Close(r.fd) })
	for to, at := range map[*[]byte]int64{&r.sq: 0, &r.cq: 0x8000000, &r.sqes: 0x10000000} {
		b, err := unix.Mmap(r.fd, at, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		*to = b
		t.Cleanup(func() { _ = unix.Munmap(b) })
	}
	return r
}

func at(b []byte, offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&b[offset])) }

func (r *ring) write(fd int, data []byte, offset int64) error {
	// struct io_uring_params: offsets of the queues begin at words 10 and 20
	sqTail, sqMask, sqArray := r.params[11], r.params[12], r.params[16]
	cqHead, cqTail, cqMask, cqes := r.params[20], r.params[21], r.params[22], r.params[25]
	tail := atomic.LoadUint32(at(r.sq, sqTail))
	slot := tail & *at(r.sq, sqMask)
	sqe := r.sqes[slot*64:][:64]
	clear(sqe)
	sqe[0] = 23 // IORING_OP_WRITE
	*(*int32)(unsafe.Pointer(&sqe[4])) = int32(fd)
	*(*int64)(unsafe.Pointer(&sqe[8])) = offset
	*(*uint64)(unsafe.Pointer(&sqe[16])) = uint64(uintptr(unsafe.Pointer(&data[0])))
	*(*uint32)(unsafe.Pointer(&sqe[24])) = uint32(len(data))
	*at(r.sq, sqArray+4*slot) = slot
	atomic.StoreUint32(at(r.sq, sqTail), tail+1)
	const getEvents = 1
	if _, _, e := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), 1, 1, getEvents, 0, 0); e != 0 {
		return e
	}
	runtime.KeepAlive(data)
	head := atomic.LoadUint32(at(r.cq, cqHead))
	for atomic.LoadUint32(at(r.cq, cqTail)) == head {
		runtime.Gosched()
	}
	result := int32(*at(r.cq, cqes+16*(head&*at(r.cq, cqMask))+8))
	atomic.StoreUint32(at(r.cq, cqHead), head+1)
	if result < 0 {
		return unix.Errno(-result)
	}
	return nil
}
