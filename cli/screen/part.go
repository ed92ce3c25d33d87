package screen

import (
	"bytes"

	"google.golang.org/protobuf/proto"
)

// Message is a message as a part of another document. It is written as Encode writes one.
type Message[M proto.Message] struct{ M M }

// MarshalJSON implements json.Marshaler.
func (m Message[M]) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	err := encodeMessage(&out, m.M.ProtoReflect())
	return out.Bytes(), err
}

func (m Message[M]) schema() map[string]any { return messageSchema(m.M.ProtoReflect().Descriptor()) }
