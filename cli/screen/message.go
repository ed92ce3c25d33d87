package screen

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// nanoSuffix is how fields of the API that are times end: nanoseconds since 1970, 0 for none.
const nanoSuffix = "unix_nano"

// key is a field's name in a document: created_unix_nano is createdTime, pause_ms is pauseMs.
func key(f protoreflect.FieldDescriptor) string {
	if !isTime(f) {
		return f.JSONName()
	}
	before := strings.TrimSuffix(strings.TrimSuffix(string(f.Name()), nanoSuffix), "_")
	if before == "" {
		return "time"
	}
	return camel(before) + "Time"
}

func isTime(f protoreflect.FieldDescriptor) bool {
	return f.Kind() == protoreflect.Int64Kind && !f.IsList() && strings.HasSuffix(string(f.Name()), nanoSuffix)
}

// camel turns LOST_AT_DEST and lost_at_dest into lostAtDest.
func camel(words string) string {
	parts := strings.Split(strings.ToLower(words), "_")
	for i, p := range parts[1:] {
		if p != "" {
			parts[i+1] = strings.ToUpper(p[:1]) + p[1:]
		}
	}
	return strings.Join(parts, "")
}

// word is a value of an enumeration without the enumeration's name: PHASE_SUCCEEDED is succeeded.
func word(e protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	v := e.Values().ByNumber(n)
	if v == nil {
		return strconv.Itoa(int(n)) // of a build after this one
	}
	if n == 0 && strings.HasSuffix(string(v.Name()), "_UNSPECIFIED") {
		return ""
	}
	return camel(strings.TrimPrefix(string(v.Name()), prefix(e)))
}

// prefix is what all values of an enumeration begin with: PHASE_ of Phase, TEMPLATE_KIND_ of TemplateKind.
func prefix(e protoreflect.EnumDescriptor) string {
	var b strings.Builder
	for i, r := range string(e.Name()) {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToUpper(b.String()) + "_"
}

// encodeMessage writes the fields in the order of the message's definition.
func encodeMessage(b *bytes.Buffer, m protoreflect.Message) error {
	b.WriteByte('{')
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if i > 0 {
			b.WriteByte(',')
		}
		f := fields.Get(i)
		encodeString(b, key(f))
		b.WriteByte(':')
		if err := encodeField(b, f, m); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return nil
}

func encodeField(b *bytes.Buffer, f protoreflect.FieldDescriptor, m protoreflect.Message) error {
	v := m.Get(f)
	switch {
	case f.IsList():
		return encodeList(b, f, v.List())
	case f.IsMap():
		return encodeMap(b, f, v.Map())
	case f.HasPresence() && !m.Has(f):
		b.WriteString("null")
		return nil
	case isTime(f):
		encodeTime(b, v.Int())
		return nil
	}
	return encodeValue(b, f, v)
}

func encodeTime(b *bytes.Buffer, nano int64) {
	if nano == 0 {
		b.WriteString("null")
		return
	}
	encodeString(b, time.Unix(0, nano).UTC().Format(time.RFC3339Nano))
}

func encodeList(b *bytes.Buffer, f protoreflect.FieldDescriptor, l protoreflect.List) error {
	b.WriteByte('[')
	for i := range l.Len() {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := encodeValue(b, f, l.Get(i)); err != nil {
			return err
		}
	}
	b.WriteByte(']')
	return nil
}

func encodeMap(b *bytes.Buffer, f protoreflect.FieldDescriptor, m protoreflect.Map) (err error) {
	var keys []protoreflect.MapKey
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return strings.Compare(a.String(), b.String()) })
	b.WriteByte('{')
	for i, k := range keys {
		if i > 0 {
			b.WriteByte(',')
		}
		encodeString(b, k.String())
		b.WriteByte(':')
		if err := encodeValue(b, f.MapValue(), m.Get(k)); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return nil
}

// encodeValue writes one value. A number that JSON has no form of is null.
func encodeValue(b *bytes.Buffer, f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return encodeMessage(b, v.Message())
	case protoreflect.EnumKind:
		encodeString(b, word(f.Enum(), v.Enum()))
	case protoreflect.BytesKind:
		encodeString(b, base64.StdEncoding.EncodeToString(v.Bytes()))
	case protoreflect.StringKind:
		encodeString(b, v.String())
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		if n := v.Float(); math.IsNaN(n) || math.IsInf(n, 0) {
			b.WriteString("null")
			return nil
		}
		data, err := json.Marshal(v.Float())
		b.Write(data)
		return err
	default: // whole numbers and booleans
		b.WriteString(v.String())
	}
	return nil
}

// encodeString writes text as JSON has it. Bytes that are no UTF-8 become U+FFFD.
func encodeString(b *bytes.Buffer, s string) {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string and a buffer have no error
	b.Truncate(b.Len() - 1)
}
