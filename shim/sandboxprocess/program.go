package sandboxprocess

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os/signal"

	"golang.org/x/sys/unix"
)

// programName is the program's file in the sandbox process's root.
const programName = "holder"

// program is an executable file (ELF, elf(5)) with that code: its header, two program headers and
// the code, which the kernel maps as one page. The second program header says that the stack
// needs no right to run; an older kernel gives it all rights if nothing is said.
func program() ([]byte, error) {
	const base, headers, code = 0x400000, 64, 64 + 2*56 // the address of the file's start; offsets in it
	size := uint64(code + len(wait))
	head := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Entry: base + code, Phoff: headers, Ehsize: headers, Phentsize: 56, Phnum: 2,
	}
	parts := [2]elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Filesz: size, Memsz: size, Align: 4096},
		{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(elf.PF_R | elf.PF_W)},
	}
	file, err := binary.Append(nil, binary.LittleEndian, head)
	if err != nil {
		return nil, err
	}
	if file, err = binary.Append(file, binary.LittleEndian, parts); err != nil {
		return nil, err
	}
	return append(file, wait...), nil
}

// execProgram replaces this process by the program in its root. Pid, namespaces, root and arguments
// stay; the memory of a Go program, some MiB, goes. It returns only if that is refused.
func execProgram(args []string) error {
	if len(wait) == 0 {
		return errors.ErrUnsupported
	}
	signal.Ignore() // all: what is ignored stays so in the program, which handles none
	return fmt.Errorf("become the program that waits: %w", unix.Exec("/"+programName, args, nil))
}
