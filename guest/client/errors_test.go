package client

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// What a guest says of an error goes into logs and answers: a long text is cut, and keeps its class.
func TestLongErrorIsCut(t *testing.T) {
	long := strings.Repeat("\u00e9", 16<<10)
	detailed, err := status.New(codes.NotFound, "short").WithDetails(status.New(codes.Aborted, long).Proto())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		err error
		is  func(error) bool
	}{
		"text":    {status.Error(codes.Unavailable, long), errdefs.IsUnavailable},
		"details": {detailed.Err(), errdefs.IsNotFound},
		"short":   {status.Error(codes.NotFound, "no such container"), errdefs.IsNotFound},
	} {
		f := newFake(t)
		a := f.connect(t)
		f.mu.Lock()
		f.fail = c.err
		f.mu.Unlock()
		_, err := a.Info(t.Context(), &agentv1.InfoRequest{})
		if !c.is(err) || len(err.Error()) > maxErrorText+64 || !utf8.ValidString(err.Error()) {
			t.Errorf("%s: %d bytes: %.80v", name, len(err.Error()), err)
		}
	}
}
