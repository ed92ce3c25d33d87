package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// typesFile is where the kernel describes its types (BTF).
const typesFile = "/sys/kernel/btf/vmlinux"

// Kinds of BTF's types that are looked at, and others' length is known.
const (
	kindInt       = 1
	kindArray     = 3
	kindStruct    = 4
	kindUnion     = 5
	kindEnum      = 6
	kindProto     = 13
	kindVar       = 14
	kindDataSec   = 15
	kindDeclTag   = 17
	kindEnum64    = 19
	typeHead      = 12
	typesMagic    = 0xeb9f
	typesHead     = 24
	typesNesting  = 8 // of structs without a name
	memberSize    = 12
	parameterSize = 8
)

var errTypes = errors.New("the kernel's description of its types is not understood")

// types are those of the kernel.
type types struct {
	data    []byte // mapped
	strings []byte
	body    []byte
	at      []uint32 // of each type, in body; ids begin with 1
}

func openTypes() (*types, error) {
	f, err := os.Open(typesFile)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's types: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() < typesHead {
		return nil, errors.Join(errTypes, err)
	}
	// Some MiB: they are no garbage afterwards.
	data, err := unix.Mmap(-1, 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's types: %w", err)
	}
	t := &types{data: data}
	for n := 0; n < len(data) && err == nil; {
		var more int
		more, err = f.ReadAt(data[n:], int64(n))
		n += more
	}
	if err == nil {
		err = t.parse()
	}
	if err != nil {
		t.close()
		return nil, fmt.Errorf("read the kernel's types: %w", err)
	}
	return t, nil
}

func (t *types) close() {
	_ = unix.Munmap(t.data)
	t.data, t.body, t.strings = nil, nil, nil
}

func (t *types) parse() error {
	u32 := func(at int) uint64 { return uint64(binary.NativeEndian.Uint32(t.data[at:])) }
	head, size := u32(4), uint64(len(t.data))
	from, length, names, namesLength := head+u32(8), u32(12), head+u32(16), u32(20)
	if binary.NativeEndian.Uint16(t.data) != typesMagic || from+length > size || names+namesLength > size {
		return errTypes
	}
	t.body, t.strings = t.data[from:from+length], t.data[names:names+namesLength]
	for at := 0; at < len(t.body); {
		if at+typeHead > len(t.body) {
			return errTypes
		}
		t.at = append(t.at, uint32(at))
		info := binary.NativeEndian.Uint32(t.body[at+4:])
		n := int(info & 0xffff)
		at += typeHead
		switch info >> 24 & 0x1f {
		case kindInt, kindVar, kindDeclTag:
			at += 4
		case kindArray:
			at += 12
		case kindStruct, kindUnion, kindDataSec, kindEnum64:
			at += n * memberSize
		case kindEnum, kindProto:
			at += n * parameterSize
		}
		if at > len(t.body) {
			return errTypes
		}
	}
	return nil
}

// entry is one type.
type entry struct {
	kind   uint32
	n      int
	fields bool // the offsets of members have sizes of bit fields
	rest   []byte
}

func (t *types) get(id uint32) (entry, error) {
	if id == 0 || id > uint32(len(t.at)) {
		return entry{}, errTypes
	}
	b := t.body[t.at[id-1]:]
	info := binary.NativeEndian.Uint32(b[4:])
	return entry{kind: info >> 24 & 0x1f, n: int(info & 0xffff), fields: info>>31 != 0, rest: b[typeHead:]}, nil
}

func (t *types) name(at uint32) string {
	if at >= uint32(len(t.strings)) {
		return ""
	}
	s, _, _ := strings.Cut(unsafe.String(&t.strings[at], len(t.strings)-int(at)), "\x00")
	return strings.Clone(s)
}

// find answers the id of the one struct of that name.
func (t *types) find(name string) (id uint32, err error) {
	for i, at := range t.at {
		b := t.body[at:]
		if binary.NativeEndian.Uint32(b[4:])>>24&0x1f != kindStruct || !t.named(binary.NativeEndian.Uint32(b), name) {
			continue
		}
		if id != 0 {
			return 0, fmt.Errorf("the kernel has several structs %s: %w", name, errTypes)
		}
		id = uint32(i) + 1
	}
	if id == 0 {
		return 0, fmt.Errorf("the kernel has no struct %s: %w", name, errTypes)
	}
	return id, nil
}

func (t *types) named(at uint32, name string) bool {
	end := uint64(at) + uint64(len(name))
	return end < uint64(len(t.strings)) && t.strings[end] == 0 && string(t.strings[at:end]) == name
}

// offset of a member of a struct, in bytes.
func (t *types) offset(of, member string) (int32, error) {
	id, err := t.find(of)
	if err != nil {
		return 0, err
	}
	bits, found, err := t.member(id, member, 0)
	if err == nil && (!found || bits%8 != 0 || bits/8 > 1<<14) {
		err = fmt.Errorf("struct %s of the kernel has no %s: %w", of, member, errTypes)
	}
	return int32(bits / 8), err
}

func (t *types) member(id uint32, name string, depth int) (bits uint32, found bool, err error) {
	e, err := t.get(id)
	if err != nil || depth > typesNesting || e.kind != kindStruct && e.kind != kindUnion {
		return 0, false, err
	}
	for i := range e.n {
		m := e.rest[i*memberSize:]
		at := binary.NativeEndian.Uint32(m[8:])
		if e.fields {
			at &= 0xffffff
		}
		switch t.name(binary.NativeEndian.Uint32(m)) {
		case name:
			return at, true, nil
		case "":
			inner, found, err := t.member(binary.NativeEndian.Uint32(m[4:]), name, depth+1)
			if found || err != nil {
				return at + inner, found, err
			}
		}
	}
	return 0, false, nil
}
