package seccomp

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/containerd/errdefs"
)

// instruction is a struct sock_filter. A jump to toEnd leads to the end of the rule.
type instruction struct {
	op     uint16
	jt, jf int
	k      uint32
}

const toEnd = -1

// maxInstructions is the kernel's.
const maxInstructions = 4096

// Codes of classic BPF.
const (
	bpfLoad = 0x20 // LD|W|ABS
	bpfAnd  = 0x54 // ALU|AND|K
	bpfJump = 0x05 // JMP|JA
	bpfJeq  = 0x15
	bpfJgt  = 0x25
	bpfJge  = 0x35
	bpfRet  = 0x06
)

// Where struct seccomp_data has what.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16 // 8 bytes each, the low half first
)

const (
	auditAMD64 = 0xc000003e
	auditI386  = 0x40000003
	x32Bit     = 0x40000000 // in a call's number, under x86_64
)

type operator int

const (
	opEqual operator = iota
	opNotEqual
	opGreater
	opGreaterEqual
	opLess
	opLessEqual
	opMasked // argument & value == two
)

type condition struct {
	index      uint
	op         operator
	value, two uint64
}

func ret(k uint32) []instruction { return []instruction{{op: bpfRet, k: k}} }

// assemble makes the program: the architecture, then a binary search for the number.
func (p *profile) assemble() ([]byte, error) {
	code := []instruction{{op: bpfLoad, k: offsetArch}}
	for arch, id := range []uint32{auditAMD64, auditI386} {
		if !p.arch[arch] {
			continue
		}
		body := append([]instruction{{op: bpfLoad, k: offsetNumber}}, search(p.spans(arch))...)
		code = append(code, instruction{op: bpfJeq, k: id, jt: 1}, instruction{op: bpfJump, k: uint32(len(body))})
		code = append(code, body...)
	}
	code = append(code, ret(retKillThread)...)
	if len(code) > maxInstructions {
		return nil, fmt.Errorf("linux.seccomp: the profile needs %d instructions, the kernel takes %d: use fewer rules "+
			"with args: %w", len(code), maxInstructions, errdefs.ErrResourceExhausted)
	}
	out := make([]byte, 0, 8*len(code))
	for _, i := range code {
		out = binary.LittleEndian.AppendUint16(out, i.op)
		out = append(out, byte(i.jt), byte(i.jf))
		out = binary.LittleEndian.AppendUint32(out, i.k)
	}
	return out, nil
}

// span is the calls from first to that before the next span's, and what becomes of
// them.
type span struct {
	first uint32
	body  []instruction
}

// spans covers all numbers.
func (p *profile) spans(arch int) []span {
	list := []span{{0, ret(p.fallback)}}
	put := func(first uint32, body []instruction) {
		if n := len(list) - 1; n > 0 && list[n].first == first {
			list = list[:n]
		}
		if n := len(list) - 1; list[n].first == first {
			list[n].body = body
		} else if !slices.Equal(list[n].body, body) {
			list = append(list, span{first, body})
		}
	}
	for _, nr := range slices.Sorted(maps.Keys(p.rules[arch])) {
		put(uint32(nr), p.call(arch, p.rules[arch][nr]))
		put(uint32(nr)+1, ret(p.fallback))
	}
	// A libc tries calls that are younger than the profile and expects to be told that
	// they do not exist, not that they are forbidden.
	if p.highest[arch] >= 0 && !permissive(p.fallback) && p.fallback&0xffff0000 != retTrace {
		put(uint32(p.highest[arch])+1, ret(retErrno|enosys))
	}
	if arch == amd64 {
		if p.x32 { // the guest's kernel has no such calls
			put(x32Bit, ret(retErrno|enosys))
		} else {
			put(x32Bit, ret(retKillThread))
		}
	}
	return list
}

// search picks the span of the number in the accumulator.
func search(list []span) []instruction {
	if len(list) == 1 {
		return list[0].body
	}
	middle := len(list) / 2
	low := search(list[:middle])
	code := []instruction{{op: bpfJge, k: list[middle].first, jf: 1}, {op: bpfJump, k: uint32(len(low))}}
	return append(append(code, low...), search(list[middle:])...)
}

// call is what the rules of one call come to.
func (p *profile) call(arch int, rules []rule) []instruction {
	for _, r := range rules {
		if len(r.when) == 0 {
			return ret(r.ret)
		}
	}
	var code []instruction
	for _, r := range rules {
		code = append(code, r.code(arch)...)
	}
	return append(code, ret(p.fallback)...)
}

// code answers the call if all conditions hold. Otherwise the filter goes on after it.
func (r rule) code(arch int) []instruction {
	var code []instruction
	for _, c := range r.when {
		if arch == i386 {
			code = append(code, c.narrow()...)
		} else {
			code = append(code, c.wide()...)
		}
	}
	code = append(code, ret(r.ret)...)
	for i := range code {
		for _, j := range []*int{&code[i].jt, &code[i].jf} {
			if *j == toEnd {
				*j = len(code) - i - 1
			}
		}
	}
	return code
}

func (c condition) load(high bool) instruction {
	offset := offsetArgs + 8*uint32(c.index)
	if high {
		offset += 4
	}
	return instruction{op: bpfLoad, k: offset}
}

// last compares the word that decides, which is loaded.
func (c condition) last(k uint32) instruction {
	switch c.op {
	case opNotEqual:
		return instruction{op: bpfJeq, k: k, jt: toEnd}
	case opGreater:
		return instruction{op: bpfJgt, k: k, jf: toEnd}
	case opGreaterEqual:
		return instruction{op: bpfJge, k: k, jf: toEnd}
	case opLess:
		return instruction{op: bpfJge, k: k, jt: toEnd}
	case opLessEqual:
		return instruction{op: bpfJgt, k: k, jt: toEnd}
	}
	return instruction{op: bpfJeq, k: k, jf: toEnd}
}

// narrow compares an argument of 32 bits.
func (c condition) narrow() []instruction {
	if c.op == opMasked {
		return []instruction{c.load(false), {op: bpfAnd, k: uint32(c.value)}, c.last(uint32(c.two))}
	}
	return []instruction{c.load(false), c.last(uint32(c.value))}
}

// wide compares an argument of 64 bits in two halves.
func (c condition) wide() []instruction {
	high, low := uint32(c.value>>32), uint32(c.value&math.MaxUint32)
	switch c.op {
	case opEqual:
		return []instruction{c.load(true), {op: bpfJeq, k: high, jf: toEnd}, c.load(false), c.last(low)}
	case opMasked:
		return []instruction{
			c.load(true), {op: bpfAnd, k: high}, {op: bpfJeq, k: uint32(c.two >> 32), jf: toEnd},
			c.load(false), {op: bpfAnd, k: low}, c.last(uint32(c.two & math.MaxUint32)),
		}
	case opNotEqual:
		return []instruction{c.load(true), {op: bpfJeq, k: high, jf: 2}, c.load(false), c.last(low)}
	case opGreater, opGreaterEqual:
		return []instruction{c.load(true), {op: bpfJgt, k: high, jt: 3}, {op: bpfJeq, k: high, jf: toEnd}, c.load(false),
			c.last(low)}
	}
	return []instruction{c.load(true), {op: bpfJge, k: high, jf: 3}, {op: bpfJeq, k: high, jf: toEnd}, c.load(false),
		c.last(low)}
}
