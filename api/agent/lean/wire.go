package lean

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
)

// A tag is a field's number and, in its TypeBits lowest bits, its type on the wire.
const (
	Varint   = 0
	Bytes    = 2
	TypeBits = 3

	fixed64 = 1
	fixed32 = 5
)

// Value of a field: number or data, as its type says.
type Value struct {
	Number uint64
	Data   []byte
}

var errCut = fmt.Errorf("agent message ends within a field: %w", errdefs.ErrInvalidArgument)

// Fields calls do for every field of a message. A field whose type does not fit its number gets
// a tag that no message has, so that it is skipped as with protobuf.
func Fields(b []byte, do func(tag int, v Value) error) error {
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 || tag>>TypeBits == 0 || tag>>TypeBits > 1<<29-1 {
			return fmt.Errorf("agent message has a bad field: %w", errdefs.ErrInvalidArgument)
		}
		v, rest, err := take(b[n:], int(tag&(1<<TypeBits-1)))
		if err != nil {
			return err
		}
		if err := do(int(tag), v); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

func take(b []byte, kind int) (v Value, rest []byte, err error) {
	switch kind {
	case Varint:
		number, n := binary.Uvarint(b)
		if n <= 0 {
			return v, nil, errCut
		}
		return Value{Number: number}, b[n:], nil
	case Bytes:
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return v, nil, errCut
		}
		end := n + int(size)
		return Value{Data: b[n:end:end]}, b[end:], nil
	case fixed32, fixed64:
		n := 4
		if kind == fixed64 {
			n = 8
		}
		if len(b) < n {
			return v, nil, errCut
		}
		return v, b[n:], nil // no message of ours has such a field
	}
	return v, nil, fmt.Errorf("agent message has a field of type %d: %w", kind, errdefs.ErrInvalidArgument)
}

// AppendNumber appends a field unless it is zero.
func AppendNumber(b []byte, field int, n uint64) []byte {
	if n == 0 {
		return b
	}
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(field<<TypeBits|Varint)), n)
}

func appendBool(b []byte, field int, v bool) []byte {
	if !v {
		return b
	}
	return AppendNumber(b, field, 1)
}

// AppendBytes appends a field unless it is empty.
func AppendBytes(b []byte, field int, data []byte) []byte { return appendString(b, field, data) }

func appendString[S string | []byte](b []byte, field int, s S) []byte {
	if len(s) == 0 {
		return b
	}
	return appendItem(b, field, s)
}

// appendItem appends what is there also when it is empty: an item of a list.
func appendItem[S string | []byte](b []byte, field int, s S) []byte {
	b = binary.AppendUvarint(b, uint64(field<<TypeBits|Bytes))
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// appendMap appends the entries in the order of their keys.
func appendMap[V any](b []byte, field int, m map[string]V, add func(b []byte, v V) []byte) []byte {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		b = appendItem(b, field, add(appendItem(nil, 1, key), m[key]))
	}
	return b
}

// takeEntry reads an entry of a map, whose values are of the type kind, into m.
func takeEntry[V any](m *map[string]V, data []byte, kind int, read func(Value) V) error {
	var key string
	var val V
	err := Fields(data, func(tag int, v Value) error {
		switch tag {
		case 1<<TypeBits | Bytes:
			key = string(v.Data)
		case 2<<TypeBits | kind:
			val = read(v)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if *m == nil {
		*m = make(map[string]V)
	}
	(*m)[key] = val
	return nil
}

func readString(v Value) string { return string(v.Data) }
func readNumber(v Value) uint64 { return v.Number }
