package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/images"
)

// ticker is what a process that ticks needs. It has neither stack that grows nor heap.
type ticker struct {
	socket uintptr
	data   []byte // a beacon
	digits []byte // of its counter, to the right, with spaces before it
	pause  unix.Timespec
}

// tick sends beacons from a process of its own, which sleeps and sends and has nothing of Go's
// runtime. Where a CPU is emulated, its code is translated anew after a move. With this process
// the first beacon tells of the move and not of timers, encoders and garbage collectors.
func (p *probe) tick(to string, interval time.Duration) {
	t := newTicker(p.nonce, interval)
	addr, err := net.ResolveUDPAddr("udp4", to)
	if err != nil {
		log.Fatal(err)
	}
	// A socket of net's wakes its poller whenever a packet has left.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		log.Fatal(fmt.Errorf("make a socket: %w", err))
	}
	peer := &unix.SockaddrInet4{Port: addr.Port, Addr: [4]byte(addr.IP.To4())}
	for unix.Connect(fd, peer) != nil { // no route yet
		time.Sleep(10 * time.Millisecond)
	}
	t.socket = uintptr(fd)
	runtime.LockOSThread() // the process ends with the thread that made it
	pid, errno := t.fork()
	if errno != 0 {
		log.Fatal(fmt.Errorf("fork: %w", errno))
	}
	var status unix.WaitStatus
	_, err = unix.Wait4(pid, &status, 0, nil)
	log.Fatal(fmt.Errorf("the process that ticks has ended with %#x: %v", status, err))
}

// newTicker makes the beacon, whose counter is 0.
func newTicker(nonce string, interval time.Duration) *ticker {
	const blank = "                    " // as many digits as an uint64 may have
	text, err := json.Marshal(images.Beacon{Nonce: nonce, Time: time.Now()})
	if err != nil {
		log.Fatal(err)
	}
	field := []byte(`"counter":`)
	t := &ticker{data: bytes.Replace(text, append(field, '0'), append(append(field, blank[1:]...), '0'), 1),
		pause: unix.NsecToTimespec(int64(interval))}
	at := bytes.Index(t.data, field) + len(field)
	t.digits = t.data[at : at+len(blank)]
	return t
}

// fork starts a process that ticks until its parent ends.
//
//go:norace
func (t *ticker) fork() (int, syscall.Errno) {
	parent := uintptr(os.Getpid())
	pid, _, err := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if err == 0 && pid == 0 {
		t.run(parent)
	}
	return int(pid), err
}

// run may call nothing that Go's runtime has a hand in.
//
//go:nosplit
//go:norace
func (t *ticker) run(parent uintptr) {
	_, _, _ = syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0, 0)
	if now, _, _ := syscall.RawSyscall6(unix.SYS_GETPPID, 0, 0, 0, 0, 0, 0); now != parent {
		_, _, _ = syscall.RawSyscall6(unix.SYS_EXIT_GROUP, 0, 0, 0, 0, 0, 0)
	}
	for {
		t.next()
		_, _, _ = syscall.RawSyscall6(unix.SYS_WRITE, t.socket, uintptr(unsafe.Pointer(&t.data[0])), uintptr(len(t.data)), 0,
			0, 0)
		_, _, _ = syscall.RawSyscall6(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t.pause)), 0, 0, 0, 0, 0)
	}
}

// next counts on, digit by digit.
//
//go:nosplit
//go:norace
func (t *ticker) next() {
	for i := len(t.digits) - 1; i >= 0; i-- {
		switch {
		case t.digits[i] == ' ':
			t.digits[i] = '1'
			return
		case t.digits[i] < '9':
			t.digits[i]++
			return
		}
		t.digits[i] = '0'
	}
}
