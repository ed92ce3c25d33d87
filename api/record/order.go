package record

import (
	"fmt"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// orderField is where an order travels. containerd's task service accepts options of a task only
// in runc's message. It hands that on as it came, with the fields that it does not know. runc's
// own numbers are far below.
const orderField protowire.Number = 7643

// Order makes the options of a Create that restores for an open operation.
func Order(configPath string, intent Intent) (*anypb.Any, error) {
	order, err := proto.Marshal(&machinev1.RestoreOptions{
		ConfigPath: configPath, Operation: intent.Operation, Attempt: intent.Attempt, Digest: intent.Digest,
		Stream: intent.Stream,
	})
	if err != nil {
		return nil, err
	}
	field := protowire.AppendBytes(protowire.AppendTag(nil, orderField, protowire.BytesType), order)
	return &anypb.Any{TypeUrl: string((*runcoptions.Options)(nil).ProtoReflect().Descriptor().FullName()), Value: field},
		nil
}

// OrderOf reads what Order made; nil options, or runc's without an order, hold none.
func OrderOf(options *anypb.Any) (*machinev1.RestoreOptions, error) {
	runc := new(runcoptions.Options)
	if !options.MessageIs(runc) {
		return nil, nil
	}
	if err := proto.Unmarshal(options.GetValue(), runc); err != nil {
		return nil, fmt.Errorf("read options: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	for rest := []byte(runc.ProtoReflect().GetUnknown()); len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return nil, fmt.Errorf("read options: %w: %w", protowire.ParseError(n), errdefs.ErrInvalidArgument)
		}
		size := protowire.ConsumeFieldValue(number, kind, rest[n:])
		if size < 0 {
			return nil, fmt.Errorf("read options: %w: %w", protowire.ParseError(size), errdefs.ErrInvalidArgument)
		}
		if number == orderField && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(rest[n:])
			order := new(machinev1.RestoreOptions)
			if err := proto.Unmarshal(value, order); err != nil {
				return nil, fmt.Errorf("read order: %w: %w", err, errdefs.ErrInvalidArgument)
			}
			return order, nil
		}
		rest = rest[n+size:]
	}
	return nil, nil
}

// NoOutput is the URI of output that goes nowhere. It means the same on each node.
const NoOutput = "null://"
