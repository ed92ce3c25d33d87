package lean

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/dynamicpb"
	"pgregory.net/rapid"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// fill gives every field of a message a value that no other has; round tells one set of
// values from another.
func fill(m protoreflect.Message, round int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
			for _, key := range []string{"b", "a", ""} {
				m.Mutable(f).Map().Set(protoreflect.ValueOfString(key).MapKey(), scalar(f.MapValue(), round))
			}
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			for n := range 2 {
				fill(m.Mutable(f).List().AppendMutable().Message(), round+n)
			}
			m.Mutable(f).List().AppendMutable()
		case f.IsList():
			m.Mutable(f).List().Append(scalar(f, round))
			m.Mutable(f).List().Append(protoreflect.ValueOfString(""))
		case f.Kind() == protoreflect.MessageKind:
			fill(m.Mutable(f).Message(), round)
		default:
			m.Set(f, scalar(f, round))
		}
	}
}

func scalar(f protoreflect.FieldDescriptor, round int) protoreflect.Value {
	n := int(f.Number()) + 100*round
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(^uint32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(^uint64(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(-int64(n))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(2)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(strings.Repeat("\x00\xff", n)))
	}
	return protoreflect.ValueOfString(strings.Repeat("\u00e4", n))
}

// Each message of the protocol is read and written as protobuf's own runtime does it:
// empty, and with every field set.
func TestSameBytes(t *testing.T) {
	messages := agentv1.File_agent_v1_agent_proto.Messages()
	if messages.Len() != len(all) {
		t.Fatalf("%d messages, the protocol has %d", len(all), messages.Len())
	}
	for i := range messages.Len() {
		desc := messages.Get(i)
		for round := range 3 {
			want := dynamicpb.NewMessage(desc)
			if round > 0 {
				fill(want, round)
			}
			sent, err := proto.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			m := all[string(desc.FullName())]()
			if err := m.Unmarshal(sent); err != nil {
				t.Fatalf("%s: %v", desc.Name(), err)
			}
			if m.Unknown() {
				t.Errorf("%s: a field of its own is unknown", desc.Name())
			}
			answered := m.AppendTo(nil)
			got := dynamicpb.NewMessage(desc)
			if err := proto.Unmarshal(answered, got); err != nil {
				t.Fatalf("%s: %v", desc.Name(), err)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("%s (-sent +answered):\n%s", desc.Name(), diff)
			}
			if again := m.AppendTo(nil); string(again) != string(answered) {
				t.Errorf("%s: two times the same message, not the same bytes", desc.Name())
			}
		}
	}
}

// A field that this build does not know is noticed, however deep it lies.
func TestUnknown(t *testing.T) {
	strange := protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1)
	nested := protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), strange)
	fixed := protowire.AppendFixed64(protowire.AppendTag(nil, 1000, protowire.Fixed64Type), 1)
	for _, b := range [][]byte{strange, nested, fixed} {
		r := new(SetupRequest)
		if err := r.Unmarshal(b); err != nil {
			t.Fatal(err)
		}
		if !r.Unknown() {
			t.Errorf("%x was not noticed", b)
		}
	}
}

// What no message can be is an error of its class, never a panic: cut anywhere, with a
// length beyond its end, of a type that is none.
func TestDamaged(t *testing.T) {
	full := dynamicpb.NewMessage(agentv1.File_agent_v1_agent_proto.Messages().ByName("SetupRequest"))
	fill(full, 1)
	sent, err := proto.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for n := range sent {
		if err := new(SetupRequest).Unmarshal(sent[:n]); errors.Is(err, errdefs.ErrInvalidArgument) {
			refused++
		} else if err != nil {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
	if refused < len(sent)/2 {
		t.Errorf("%d of %d cuts refused", refused, len(sent))
	}
	for _, b := range []string{"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x0b", "\x00\x01", "\x80", "\x0d\x00"} {
		if err := new(InfoResponse).Unmarshal([]byte(b)); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%q: %v", b, err)
		}
	}
}

// same has a message read as protobuf's own code reads it: the same fields, whether there
// are others, and what is no message at all.
func same(t interface {
	Helper()
	Fatalf(string, ...any)
}, name protoreflect.FullName, b []byte) {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if err != nil {
		t.Fatalf("%v", err)
	}
	want, m := kind.New(), all[string(name)]()
	theirs, ours := proto.Unmarshal(b, want.Interface()), m.Unmarshal(b)
	switch {
	case theirs != nil && (ours != nil || !utf8.Valid(b)): // we take any bytes for a string
		return
	case ours != nil && strings.Contains(ours.Error(), "field of type 3"): // a group: we take none
		return
	case (theirs == nil) != (ours == nil):
		t.Fatalf("%s %x: %v, protobuf says %v", name, b, ours, theirs)
	}
	if unknown := drop(want); unknown != m.Unknown() {
		t.Fatalf("%s %x: unknown fields: %v, protobuf says %v", name, b, m.Unknown(), unknown)
	}
	got := kind.New()
	if err := proto.Unmarshal(m.AppendTo(nil), got.Interface()); err != nil {
		t.Fatalf("%s %x: %v", name, b, err)
	}
	if !proto.Equal(want.Interface(), got.Interface()) {
		t.Fatalf("%s %x (-protobuf +ours):\n%s", name, b, cmp.Diff(want.Interface(), got.Interface(), protocmp.Transform()))
	}
}

// drop takes the unknown fields away and reports whether there were any.
func drop(m protoreflect.Message) bool {
	found := len(m.GetUnknown()) > 0
	m.SetUnknown(nil)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap() || f.Kind() != protoreflect.MessageKind:
		case f.IsList():
			for i := range v.List().Len() {
				found = drop(v.List().Get(i).Message()) || found
			}
		default:
			found = drop(v.Message()) || found
		}
		return true
	})
	return found
}

// anyFields draws a message of any fields, each of any type.
func anyFields(t *rapid.T, deep int) (b []byte) {
	for range rapid.IntRange(0, 6).Draw(t, "fields") {
		field := protowire.Number(rapid.IntRange(1, 18).Draw(t, "field"))
		switch kind := rapid.SampledFrom([]protowire.Type{0, 2, 2, 2, 1, 5}).Draw(t, "type"); {
		case kind == protowire.VarintType:
			b = protowire.AppendVarint(protowire.AppendTag(b, field, kind), rapid.Uint64().Draw(t, "number"))
		case kind == protowire.Fixed64Type:
			b = protowire.AppendFixed64(protowire.AppendTag(b, field, kind), 1)
		case kind == protowire.Fixed32Type:
			b = protowire.AppendFixed32(protowire.AppendTag(b, field, kind), 1)
		case deep > 0 && rapid.Bool().Draw(t, "nested"):
			b = protowire.AppendBytes(protowire.AppendTag(b, field, kind), anyFields(t, deep-1))
		default:
			b = protowire.AppendString(protowire.AppendTag(b, field, kind), rapid.StringN(0, 4, -1).Draw(t, "text"))
		}
	}
	return b
}

// Any bytes mean to us what they mean to protobuf: fields that come twice, or with a type
// that is not theirs, numbers that are too large, entries of maps that lack a part.
func TestSameAsProtobuf(t *testing.T) {
	messages := agentv1.File_agent_v1_agent_proto.Messages()
	rapid.Check(t, func(t *rapid.T) {
		b := anyFields(t, 2)
		for i := range messages.Len() {
			same(t, messages.Get(i).FullName(), b)
		}
	})
}

func FuzzSameAsProtobuf(f *testing.F) {
	f.Add([]byte("\x0a\x04\x0a\x02rw"))
	f.Add([]byte("\x4a\x06\x0a\x01a\x12\x01b"))
	f.Add([]byte("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	messages := agentv1.File_agent_v1_agent_proto.Messages()
	f.Fuzz(func(t *testing.T, b []byte) {
		for i := range messages.Len() {
			same(t, messages.Get(i).FullName(), b)
		}
	})
}
