// Package bpf loads small programs into the kernel: a rule for the devices of a cgroup, one for connections in a
// network namespace, and notes of what is written to a file. It speaks to the kernel itself, because a library for all
// of bpf(2) is larger than the guest's whole agent.
package bpf

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// instruction is one of the kernel's, as struct bpf_insn.
type instruction struct {
	code     uint8
	dst, src uint8
	off      int16
	imm      int32
}

func encode(program []instruction) []byte {
	var out []byte
	for _, i := range program {
		out = append(out, i.code, i.dst|i.src<<4)
		out = binary.NativeEndian.AppendUint16(out, uint16(i.off))
		out = binary.NativeEndian.AppendUint32(out, uint32(i.imm))
	}
	return out
}

// Codes of the instructions that the programs have.
const (
	loadWord  = unix.BPF_LDX | unix.BPF_MEM | unix.BPF_W
	loadByte  = unix.BPF_LDX | unix.BPF_MEM | unix.BPF_B
	moveImm   = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K
	moveReg   = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_X
	addImm    = unix.BPF_ALU64 | unix.BPF_ADD | unix.BPF_K
	andImm    = unix.BPF_ALU64 | unix.BPF_AND | unix.BPF_K
	shiftR    = unix.BPF_ALU64 | unix.BPF_RSH | unix.BPF_K
	jumpEq    = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	jumpNotEq = unix.BPF_JMP | unix.BPF_JNE | unix.BPF_K
	call      = unix.BPF_JMP | unix.BPF_CALL
	exit      = unix.BPF_JMP | unix.BPF_EXIT
	storeImm  = unix.BPF_ST | unix.BPF_MEM | unix.BPF_W
	loadImm   = unix.BPF_LD | unix.BPF_IMM | unix.BPF_DW // takes two instructions
)

// license of all programs: the kernel lets others call less.
var license = append([]byte("GPL"), 0)

// attr is the part of union bpf_attr that a command takes, zero-padded.
type attr [128]byte

func (a *attr) u32(at int, v uint32) { binary.NativeEndian.PutUint32(a[at:], v) }

func (a *attr) pointer(at int, p unsafe.Pointer) {
	binary.NativeEndian.PutUint64(a[at:], uint64(uintptr(p)))
}

func bpf(command int, a *attr) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(unsafe.Pointer(a)), unsafe.Sizeof(*a))
	if errno != 0 {
		return -1, errno
	}
	return int(r), nil
}

// loadTries is far more than signals can come in a row while a program of some dozen instructions is checked.
const loadTries = 100

// uninterrupted repeats a load that a signal interrupted: the kernel gives the check of a program up for any, also for
// those with which Go's runtime preempts a goroutine.
func uninterrupted(load func() (int, error)) (fd int, err error) {
	for range loadTries {
		if fd, err = load(); err != unix.EAGAIN {
			break
		}
	}
	return fd, err
}

// load loads a program. attach is what it is for, where its kind has several uses.
func load(kind, attach uint32, program []instruction) (*os.File, error) {
	code := encode(program)
	a := new(attr)
	a.u32(0, kind)
	a.u32(4, uint32(len(program)))
	a.pointer(8, unsafe.Pointer(unsafe.SliceData(code)))
	a.pointer(16, unsafe.Pointer(unsafe.SliceData(license)))
	a.u32(68, attach) // expected_attach_type
	fd, err := uninterrupted(func() (int, error) { return bpf(unix.BPF_PROG_LOAD, a) })
	runtime.KeepAlive(code)
	if err != nil {
		return nil, fmt.Errorf("load program: %w", err)
	}
	return os.NewFile(uintptr(fd), "bpf program"), nil
}
