package serve

import (
	"context"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/agent/lean"
)

// codes of grpc, which ttrpc answers with.
var codes = map[error]uint64{
	context.Canceled: 1, errdefs.ErrUnknown: 2, errdefs.ErrInvalidArgument: 3, context.DeadlineExceeded: 4,
	errdefs.ErrNotFound: 5, errdefs.ErrAlreadyExists: 6, errdefs.ErrPermissionDenied: 7,
	errdefs.ErrResourceExhausted: 8, errdefs.ErrFailedPrecondition: 9, errdefs.ErrConflict: 9,
	errdefs.ErrNotModified: 9, errdefs.ErrAborted: 10, errdefs.ErrOutOfRange: 11, errdefs.ErrNotImplemented: 12,
	errdefs.ErrInternal: 13, errdefs.ErrUnavailable: 14, errdefs.ErrDataLoss: 15, errdefs.ErrUnauthenticated: 16,
}

// appendResponse appends a ttrpc.Response: the payload, or a status with the class of the
// error.
func appendResponse(b, payload []byte, err error) []byte {
	if err == nil {
		return lean.AppendBytes(b, 2, payload)
	}
	status := lean.AppendNumber(nil, 1, codes[errdefs.Resolve(err)])
	status = lean.AppendBytes(status, 2, []byte(text(err)))
	return lean.AppendBytes(b, 1, status)
}

// maxText is what the host is told of an error at most.
const maxText = 16 << 10

// text of an error as protobuf takes it. It may quote what a program or a file is called:
// any bytes, of any length. The host would take neither, and lose the class with the text.
func text(err error) string {
	s := err.Error()
	if len(s) > maxText {
		s = s[:maxText/2] + " ... " + s[len(s)-maxText/2:]
	}
	return strings.ToValidUTF8(s, "\ufffd")
}
