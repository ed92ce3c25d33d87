package bpf

import (
	"errors"
	"fmt"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of struct bpf_sk_lookup, and what it is compared with.
const (
	ctxFamily   = 8
	ctxProtocol = 12
	ctxLocalIP4 = 40
	ctxLocalIP6 = 44

	loopbackNet = 127
)

// check wants a value in the context of a lookup.
type check struct {
	code uint8
	at   int16
	want int32
}

// loopback is what a lookup has that is for the loopback addresses of a family: 127.0.0.0/8, or ::1.
func loopback(family int) []check {
	all := []check{{loadWord, ctxProtocol, unix.IPPROTO_TCP}, {loadWord, ctxFamily, int32(family)}}
	if family == unix.AF_INET {
		return append(all, check{loadByte, ctxLocalIP4, loopbackNet})
	}
	for i, b := range net.IPv6loopback {
		all = append(all, check{loadByte, int16(ctxLocalIP6 + i), int32(b)})
	}
	return all
}

// Functions of the kernel.
const (
	mapLookup = 1
	sockFree  = 86
	sockGive  = 124
)

// TakeLoopback gives the socket listener every TCP connection to 127.0.0.0/8, or ::1, in a network namespace, whatever
// its port. family is the listener's. It ends when what it answers is closed.
func TakeLoopback(netns *os.File, listener, family int) (*os.File, error) {
	sockets, err := socketMap(listener)
	if err != nil {
		return nil, fmt.Errorf("take connections: %w", err)
	}
	defer sockets.Close() // the program has it
	program, err := load(unix.BPF_PROG_TYPE_SK_LOOKUP, unix.BPF_SK_LOOKUP, toListener(int(sockets.Fd()), loopback(family)))
	if err != nil {
		return nil, fmt.Errorf("take connections: %w", err)
	}
	defer program.Close()
	a := new(attr)
	a.u32(0, uint32(program.Fd()))
	a.u32(4, uint32(netns.Fd()))
	a.u32(8, unix.BPF_SK_LOOKUP)
	fd, err := bpf(unix.BPF_LINK_CREATE, a)
	if err != nil {
		return nil, fmt.Errorf("take connections: link program: %w", err)
	}
	return os.NewFile(uintptr(fd), "bpf link"), nil
}

// LoopbackFault says why this process cannot load what TakeLoopback needs; nil: it can. Nothing of the host changes.
func LoopbackFault() error {
	sockets, err := emptyMap()
	if err != nil {
		return err
	}
	defer sockets.Close()
	program, err := load(unix.BPF_PROG_TYPE_SK_LOOKUP, unix.BPF_SK_LOOKUP,
		toListener(int(sockets.Fd()), loopback(unix.AF_INET)))
	if err != nil {
		return err
	}
	return program.Close()
}

// emptyMap is a map that takes one socket.
func emptyMap() (*os.File, error) {
	a := new(attr)
	for at, v := range map[int]uint32{0: unix.BPF_MAP_TYPE_SOCKMAP, 4: 4, 8: 8, 12: 1} { // kind, key, value, entries
		a.u32(at, v)
	}
	fd, err := bpf(unix.BPF_MAP_CREATE, a)
	if err != nil {
		return nil, fmt.Errorf("make map: %w", err)
	}
	return os.NewFile(uintptr(fd), "bpf map"), nil
}

// socketMap is a map that has the one socket.
func socketMap(socket int) (*os.File, error) {
	file, err := emptyMap()
	if err != nil {
		return nil, err
	}
	key, value := new(uint32), new(uint64)
	*value = uint64(socket)
	a := new(attr)
	a.u32(0, uint32(file.Fd()))
	a.pointer(8, unsafe.Pointer(key))
	a.pointer(16, unsafe.Pointer(value))
	if _, err := bpf(unix.BPF_MAP_UPDATE_ELEM, a); err != nil {
		return nil, errors.Join(fmt.Errorf("put socket into map: %w", err), file.Close())
	}
	return file, nil
}

// toListener answers 1 in any case: what it does not take finds its socket as without it.
func toListener(sockets int, checks []check) []instruction {
	const slot = -4 // of the key, on the stack
	take := []instruction{
		{code: storeImm, dst: 10, off: slot, imm: 0},
		{code: loadImm, dst: 1, src: unix.BPF_PSEUDO_MAP_FD, imm: int32(sockets)}, {},
		{code: moveReg, dst: 2, src: 10},
		{code: addImm, dst: 2, imm: slot},
		{code: call, imm: mapLookup},
		{code: jumpEq, dst: 0, imm: 0, off: 7}, // there is none any more
		{code: moveReg, dst: 7, src: 0},
		{code: moveReg, dst: 1, src: 6},
		{code: moveReg, dst: 2, src: 7},
		{code: moveImm, dst: 3, imm: 0},
		{code: call, imm: sockGive},
		{code: moveReg, dst: 1, src: 7},
		{code: call, imm: sockFree},
	}
	p := []instruction{{code: moveReg, dst: 6, src: 1}}
	for i, c := range checks {
		rest := 2*(len(checks)-1-i) + len(take)
		p = append(p, instruction{code: c.code, dst: 2, src: 6, off: c.at},
			instruction{code: jumpNotEq, dst: 2, imm: c.want, off: int16(rest)})
	}
	p = append(p, take...)
	return append(p, instruction{code: moveImm, dst: 0, imm: 1}, instruction{code: exit})
}
