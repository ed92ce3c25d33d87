package client

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// Nothing of a Setup is lost on its way but the files, which follow. What the guest does not hear of, such as a user
// namespace, the container would not have.
func TestBareKeepsAllButFiles(t *testing.T) {
	full := new(agentv1.SetupRequest)
	m := full.ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsList():
			m.Mutable(f).List().Append(valueOf(f, m.Mutable(f).List().NewElement()))
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), protoreflect.ValueOfString("v"))
		default:
			m.Set(f, valueOf(f, m.NewField(f)))
		}
	}
	got := bare(full)
	if len(full.Files) == 0 || len(got.Files) != 0 {
		t.Fatalf("%d files before, %d after", len(full.Files), len(got.Files))
	}
	full.Files = nil
	if !proto.Equal(got, full) {
		t.Errorf("got %v, want %v", got, full)
	}
}

// valueOf is a value that is not the field's default.
func valueOf(f protoreflect.FieldDescriptor, empty protoreflect.Value) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("x")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("x"))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(1)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(1)
	}
	return empty
}
