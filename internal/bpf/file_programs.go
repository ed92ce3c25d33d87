package bpf

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Layout of the value of the map. After words of 8 bytes there is a bit for each block that was written. After these
// there is a bit for each block that was allocated, zeroed or punched.
const (
	lostAt    = 0 // why the notes are not whole; 0: they are
	pingsAt   = 8
	settledAt = 16
	inodeAt   = 24 // address of the inode
	askedAt   = 32 // number of the inode that is asked for; 0: none is
	deviceAt  = 40 // of it, as the kernel numbers it
	writersAt = 48 // open files that may write it
	bitsAt    = 64

	// mostWords are looked at by a write. A longer one ends the notes. The kernel follows each turn of a loop as it
	// checks a program.
	mostWords = 32
)

// Ways in which notes end.
const (
	lostGrown = 1 + iota
	lostLong
	lostMapped
	lostFlags
	lostShape
	lostResized
	lostInode
	lostSkipped
	lostClosed
)

var lostReasons = map[uint64]string{
	lostGrown: "it has grown", lostLong: "a range was too long", lostMapped: "it is mapped writable",
	lostFlags: "it is swapped to, or is memory", lostShape: "its blocks were moved", lostResized: "its size was set",
	lostInode: "its inode is another one", lostSkipped: "the kernel did not run a program", lostClosed: "they have ended",
}

// Flags of struct inode, of files that are written in other ways.
const (
	inodeSwap = 1 << 8
	inodeDAX  = 1 << 13
)

// hook is a program for an event of the kernel.
type hook struct {
	event string
	make  func(*fileProgram)
}

// fileHooks are for the events of each way in which ext4 changes the content of a file. Ways without an event are to be
// excluded: a mapped file, one that is opened past the cache, and ioctls that move blocks. What is written is in the
// kernel's cache by the event. The other events come before their change.
var fileHooks = []hook{
	{"ext4_da_write_end", (*fileProgram).written},
	{"ext4_write_end", (*fileProgram).written},
	{"ext4_journalled_write_end", (*fileProgram).written},
	{"ext4_fallocate_enter", (*fileProgram).allocated},
	{"ext4_punch_hole", (*fileProgram).allocated},
	{"ext4_zero_range", (*fileProgram).allocated},
	{"ext4_collapse_range", func(p *fileProgram) { p.lost(lostShape) }},
	{"ext4_insert_range", func(p *fileProgram) { p.lost(lostShape) }},
	{"ext4_truncate_enter", func(p *fileProgram) { p.lost(lostResized) }},
	{"ext4_es_lookup_extent_enter", (*fileProgram).asked},
}

// inodeOffsets are where the kernel has what asked looks at.
type inodeOffsets struct {
	number, super, device, flags, mapping, mapped, writers int32
}

func (t *types) inodeOffsets() (o inodeOffsets, err error) {
	for to, at := range map[*int32][2]string{
		&o.number: {"inode", "i_ino"}, &o.super: {"inode", "i_sb"}, &o.device: {"super_block", "s_dev"},
		&o.flags: {"inode", "i_flags"}, &o.mapping: {"inode", "i_mapping"},
		&o.mapped: {"address_space", "i_mmap_writable"}, &o.writers: {"inode", "i_writecount"},
	} {
		if *to, err = t.offset(at[0], at[1]); err != nil {
			return o, err
		}
	}
	return o, nil
}

// knownInode is what was read: the kernel stays the same as long as this process lives. To read it takes most of the
// time that notes need to begin.
var knownInode atomic.Pointer[inodeOffsets]

func offsetsOfInodes() (*inodeOffsets, error) {
	if o := knownInode.Load(); o != nil {
		return o, nil
	}
	kernel, err := openTypes()
	if err != nil {
		return nil, err
	}
	defer kernel.close()
	o, err := kernel.inodeOffsets()
	if err != nil {
		return nil, err
	}
	knownInode.Store(&o)
	return &o, nil
}

// fileProgram makes one program. Register 6 has the parameters of its event, the first of which is an inode.
type fileProgram struct {
	assembler
	table  int // the map
	blocks uint32
	shift  int32 // of a byte's offset, to its block
	inode  inodeOffsets
}

func (p *fileProgram) parameter(dst uint8, number int16) {
	p.add(instruction{code: loadLong, dst: dst, src: 6, off: 8 * number})
}

// only ends the program unless the event is of the file.
func (p *fileProgram) only() {
	p.parameter(1, 0)
	p.value(2, p.table, inodeAt)
	p.add(instruction{code: loadLong, dst: 2, src: 2})
	p.jump("end", instruction{code: ifNotEqReg, dst: 1, src: 2})
}

// lose ends the notes, with a label.
func (p *fileProgram) lose(label string, why int32) {
	p.label(label)
	p.value(1, p.table, lostAt)
	p.add(instruction{code: storeLong, dst: 1, imm: why})
	p.jump("end", instruction{code: always})
}

func (p *fileProgram) lost(why int32) {
	p.only()
	p.lose("lost", why)
}

// written is of an event with offset and length.
func (p *fileProgram) written() {
	p.only()
	p.parameter(8, 1)
	p.parameter(9, 2)
	p.add(instruction{code: shiftL, dst: 9, imm: 32}, instruction{code: shiftRLong, dst: 9, imm: 32}) // it is an int
	p.note(bitsAt)
}

// allocated is of an event with offset, length and mode.
func (p *fileProgram) allocated() {
	p.only()
	p.parameter(1, 3)
	p.add(instruction{code: andImm32, dst: 1, imm: -1 &^ (unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_PUNCH_HOLE |
		unix.FALLOC_FL_ZERO_RANGE)})
	p.jump("shape", instruction{code: jumpNotEq, dst: 1, imm: 0})
	p.parameter(8, 1)
	p.parameter(9, 2)
	p.note(bitsAt + int32(notedWordsOf(p.blocks)*8))
	p.lose("shape", lostShape)
}

// note sets the bits of bytes at offset register 8, of length register 9. It sets bits that are set, too: a reader that
// forgets them at that moment has to see what was written. So the order of both is the processor's (BPF_FETCH).
func (p *fileProgram) note(bits int32) {
	p.jump("grown", instruction{code: ifNegative, dst: 8, imm: 0})
	p.jump("end", instruction{code: ifNegative, dst: 9, imm: 1})
	p.add(
		instruction{code: addReg, dst: 9, src: 8},
		instruction{code: addImm, dst: 9, imm: -1},
		instruction{code: shiftRLong, dst: 8, imm: p.shift},
		instruction{code: shiftRLong, dst: 9, imm: p.shift})
	p.jump("grown", instruction{code: ifNotBelow, dst: 9, imm: int32(p.blocks)})
	p.value(6, p.table, bits)
	p.add(
		instruction{code: moveImm, dst: 2, imm: -1},
		instruction{code: moveReg, dst: 1, src: 8},
		instruction{code: andImm, dst: 1, imm: 63},
		instruction{code: shiftLReg, dst: 2, src: 1},
		instruction{code: shiftRLong, dst: 8, imm: 6}, // the first word
		instruction{code: moveReg, dst: 4, src: 9},
		instruction{code: shiftRLong, dst: 4, imm: 6}, // the last one
		instruction{code: moveImm, dst: 3, imm: 0})
	p.label("word")
	p.jump("middle", instruction{code: ifNotEqReg, dst: 8, src: 4})
	p.add(
		instruction{code: andImm, dst: 9, imm: 63},
		instruction{code: moveImm, dst: 1, imm: 63},
		instruction{code: subReg, dst: 1, src: 9},
		instruction{code: moveImm, dst: 5, imm: -1},
		instruction{code: shiftRReg, dst: 5, src: 1},
		instruction{code: andReg, dst: 2, src: 5})
	p.label("middle")
	p.jump("grown", instruction{code: ifNotBelow, dst: 8, imm: int32(notedWordsOf(p.blocks))})
	p.add(
		instruction{code: moveReg, dst: 1, src: 8},
		instruction{code: shiftL, dst: 1, imm: 3},
		instruction{code: moveReg, dst: 5, src: 6},
		instruction{code: addReg, dst: 5, src: 1},
		instruction{code: atomicLong, dst: 5, src: 2, imm: unix.BPF_OR | unix.BPF_FETCH},
		instruction{code: moveImm, dst: 2, imm: -1},
		instruction{code: addImm, dst: 8, imm: 1},
		instruction{code: addImm, dst: 3, imm: 1})
	p.jump("more", instruction{code: ifAtMostReg, dst: 8, src: 4})
	p.jump("end", instruction{code: always})
	p.label("more")
	p.jump("word", instruction{code: ifBelow, dst: 3, imm: mostWords})
	p.lose("long", lostLong)
	p.lose("grown", lostGrown)
}

// readKernel is the helper that reads any address, and fails where there is none.
const readKernel = 113

// read loads into register 8 what the kernel has at an offset from an address.
func (p *fileProgram) read(size int32, address uint8, offset int32) {
	const slot = -8 // on the stack
	p.add(
		instruction{code: moveReg, dst: 3, src: address},
		instruction{code: addImm, dst: 3, imm: offset},
		instruction{code: storeLong, dst: 10, off: slot, imm: 0},
		instruction{code: moveReg, dst: 1, src: 10},
		instruction{code: addImm, dst: 1, imm: slot},
		instruction{code: moveImm, dst: 2, imm: size},
		instruction{code: call, imm: readKernel})
	p.jump("end", instruction{code: jumpNotEq, dst: 0, imm: 0})
	if size == 4 {
		p.add(instruction{code: loadWord, dst: 8, src: 10, off: slot})
		return
	}
	p.add(instruction{code: loadLong, dst: 8, src: 10, off: slot})
}

// asked answers the question where the file has data: that programs run, which inode it is, and who may write to it. It
// is called for each file often, and looks at none unless it is asked.
func (p *fileProgram) asked() {
	p.value(9, p.table, 0)
	p.add(instruction{code: loadLong, dst: 1, src: 9, off: askedAt})
	p.jump("end", instruction{code: jumpEq, dst: 1, imm: 0})
	p.parameter(7, 0)
	p.read(8, 7, p.inode.number)
	p.add(instruction{code: loadLong, dst: 1, src: 9, off: askedAt})
	p.jump("end", instruction{code: ifNotEqReg, dst: 8, src: 1})
	p.read(8, 7, p.inode.super)
	p.add(instruction{code: moveReg, dst: 1, src: 8})
	p.read(4, 1, p.inode.device)
	p.add(instruction{code: loadLong, dst: 1, src: 9, off: deviceAt})
	p.jump("end", instruction{code: ifNotEqReg, dst: 8, src: 1})
	p.add(instruction{code: loadLong, dst: 1, src: 9, off: inodeAt})
	p.jump("known", instruction{code: ifEqReg, dst: 1, src: 7})
	p.jump("other", instruction{code: jumpNotEq, dst: 1, imm: 0})
	p.add(instruction{code: storeReg, dst: 9, src: 7, off: inodeAt})
	p.label("known")
	p.read(4, 7, p.inode.flags)
	p.jump("flags", instruction{code: ifAnd, dst: 8, imm: inodeDAX | inodeSwap})
	p.read(8, 7, p.inode.mapping)
	p.add(instruction{code: moveReg, dst: 1, src: 8})
	p.read(4, 1, p.inode.mapped)
	p.jump("mapped", instruction{code: ifMore32, dst: 8, imm: 0})
	p.read(4, 7, p.inode.writers)
	p.add(
		instruction{code: storeReg, dst: 9, src: 8, off: writersAt},
		instruction{code: moveImm, dst: 1, imm: 1},
		instruction{code: atomicLong, dst: 9, src: 1, off: pingsAt, imm: unix.BPF_ADD})
	p.jump("end", instruction{code: always})
	p.lose("other", lostInode)
	p.lose("flags", lostFlags)
	p.lose("mapped", lostMapped)
}

// code ends the program.
func (p *fileProgram) build(h hook) []instruction {
	p.add(instruction{code: moveReg, dst: 6, src: 1})
	h.make(p)
	p.label("end")
	p.add(instruction{code: moveImm, dst: 0}, instruction{code: exit})
	return p.program()
}
