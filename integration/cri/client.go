// Package cri speaks with containerd's CRI plugin as a kubelet does. The messages have few
// fields, so they are written by hand: no module of Kubernetes is needed. Fields are those of
// k8s.io/cri-api, runtime/v1.
package cri

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

// Client is a connection to one containerd. It is made anew where that is.
type Client struct{ conn *grpc.ClientConn }

// Dial connects when the first call does.
func Dial(socket string) (*Client, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	return &Client{conn}, err
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Message is a protobuf message in the making.
type Message []byte

// Text appends a field of bytes.
func (m Message) Text(field protowire.Number, value string) Message {
	return protowire.AppendString(protowire.AppendTag(m, field, protowire.BytesType), value)
}

// Number appends a field with a number.
func (m Message) Number(field protowire.Number, value uint64) Message {
	return protowire.AppendVarint(protowire.AppendTag(m, field, protowire.VarintType), value)
}

// Pod is the configuration of a sandbox.
func Pod(name string) Message {
	metadata := Message{}.Text(1, name).Text(2, "uid-"+name).Text(3, "default")
	return Message{}.Text(1, string(metadata)).Text(2, name)
}

// Container is the configuration of a container.
func Container(name, image string) Message {
	metadata := Message{}.Text(1, name)
	return Message{}.Text(1, string(metadata)).Text(2, string(Message{}.Text(1, image))).Text(3, "/bin/sleep")
}

// Call invokes a method of the runtime service and answers the response's bytes.
func (c *Client) Call(ctx context.Context, method string, request Message) ([]byte, error) {
	in, out := []byte(request), []byte(nil)
	err := c.conn.Invoke(ctx, "/runtime.v1.RuntimeService/"+method, &in, &out, grpc.ForceCodec(raw{}))
	return out, err
}

// First answers the first text field of that number.
func First(message []byte, field protowire.Number) string {
	for _, f := range Fields(message, field) {
		return string(f)
	}
	return ""
}

// Fields answers all fields of bytes of that number; Number one of a number's.
func Fields(message []byte, field protowire.Number) (all [][]byte) {
	each(message, func(n protowire.Number, data []byte, _ uint64) {
		if n == field && data != nil {
			all = append(all, data)
		}
	})
	return all
}

// Number answers the field of that number; 0 if it is not there.
func Number(message []byte, field protowire.Number) (value uint64) {
	each(message, func(n protowire.Number, data []byte, v uint64) {
		if n == field && data == nil {
			value = v
		}
	})
	return value
}

func each(message []byte, do func(n protowire.Number, data []byte, v uint64)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		var data []byte
		var v uint64
		switch kind {
		case protowire.BytesType:
			data, n = protowire.ConsumeBytes(message)
			data = append([]byte{}, data...)
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return
		}
		do(number, data, v)
		message = message[n:]
	}
}

// raw carries messages that are bytes already.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) ([]byte, error) {
	if b, ok := v.(*[]byte); ok {
		return *b, nil
	}
	return nil, fmt.Errorf("marshal %T: it is no message", v)
}

func (raw) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("unmarshal %T: it is no message", v)
	}
	*b = append([]byte(nil), data...)
	return nil
}
