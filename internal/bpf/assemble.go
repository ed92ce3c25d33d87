package bpf

import "golang.org/x/sys/unix"

// More codes, of programs with jumps to labels.
const (
	loadLong    = unix.BPF_LDX | unix.BPF_MEM | unix.BPF_DW
	storeLong   = unix.BPF_ST | unix.BPF_MEM | unix.BPF_DW
	storeReg    = unix.BPF_STX | unix.BPF_MEM | unix.BPF_DW
	atomicLong  = unix.BPF_STX | unix.BPF_ATOMIC | unix.BPF_DW
	addReg      = unix.BPF_ALU64 | unix.BPF_ADD | unix.BPF_X
	subReg      = unix.BPF_ALU64 | unix.BPF_SUB | unix.BPF_X
	andReg      = unix.BPF_ALU64 | unix.BPF_AND | unix.BPF_X
	andImm32    = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	shiftL      = unix.BPF_ALU64 | unix.BPF_LSH | unix.BPF_K
	shiftLReg   = unix.BPF_ALU64 | unix.BPF_LSH | unix.BPF_X
	shiftRLong  = unix.BPF_ALU64 | unix.BPF_RSH | unix.BPF_K
	shiftRReg   = unix.BPF_ALU64 | unix.BPF_RSH | unix.BPF_X
	always      = unix.BPF_JMP | unix.BPF_JA
	ifNotEqReg  = unix.BPF_JMP | unix.BPF_JNE | unix.BPF_X
	ifEqReg     = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_X
	ifMore32    = unix.BPF_JMP32 | unix.BPF_JSGT | unix.BPF_K
	ifNegative  = unix.BPF_JMP | unix.BPF_JSLT | unix.BPF_K
	ifNotBelow  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	ifBelow     = unix.BPF_JMP | unix.BPF_JLT | unix.BPF_K
	ifAtMostReg = unix.BPF_JMP | unix.BPF_JLE | unix.BPF_X
	ifAnd       = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
)

// assembler makes a program whose jumps go to labels.
type assembler struct {
	code   []instruction
	labels map[string]int
	jumps  map[int]string
}

func (a *assembler) add(code ...instruction) { a.code = append(a.code, code...) }

// jump adds a jump to a label, which may come later.
func (a *assembler) jump(label string, i instruction) {
	a.jumps[len(a.code)] = label
	a.add(i)
}

func (a *assembler) label(name string) { a.labels[name] = len(a.code) }

// value loads the address of a byte of the value of a map that has one.
func (a *assembler) value(dst uint8, table int, offset int32) {
	a.add(instruction{code: loadImm, dst: dst, src: unix.BPF_PSEUDO_MAP_VALUE, imm: int32(table)},
		instruction{imm: offset})
}

func (a *assembler) program() []instruction {
	for at, label := range a.jumps {
		a.code[at].off = int16(a.labels[label] - at - 1)
	}
	return a.code
}
