package client

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// ordered is a godwitd whose operation ends at the third question.
type ordered struct {
	daemon
	asked int
	ends  *nodev1.Operation
}

func (o *ordered) Hibernate(_ context.Context, req *nodev1.HibernateRequest) (*nodev1.StatusResponse, error) {
	o.ends.Vm = req.GetVm()
	return &nodev1.StatusResponse{Operation: &nodev1.Operation{Id: "o", Vm: req.GetVm()}}, nil
}

func (o *ordered) Status(_ context.Context, req *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	if req.GetOperation() != "o" {
		return nil, errdefs.ErrNotFound
	}
	if o.asked++; o.asked < 3 {
		return &nodev1.StatusResponse{Operation: &nodev1.Operation{Id: "o"}, Step: "push"}, nil
	}
	return &nodev1.StatusResponse{Operation: o.ends, Settled: true}, nil
}

// An operation is followed to its end, and told on the way. One that fails is an error of its reason's class. One whose
// client is interrupted goes on.
func TestOperationsAreFollowed(t *testing.T) {
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	for name, tt := range map[string]struct {
		ends *nodev1.Operation
		is   func(error) bool
	}{
		"success": {&nodev1.Operation{Id: "o", Phase: nodev1.Phase_PHASE_SUCCEEDED, Digest: digest("ab")},
			func(err error) bool { return err == nil }},
		"failure": {&nodev1.Operation{Id: "o", Phase: nodev1.Phase_PHASE_FAILED, Reason: "the store is full",
			Class: errdefs.ErrResourceExhausted.Error()}, errdefs.IsResourceExhausted},
		"loss": {&nodev1.Operation{Id: "o", Phase: nodev1.Phase_PHASE_LOST_AT_DEST, Reason: "x"}, errdefs.IsAborted},
	} {
		socket := t.TempDir() + "/s"
		serveNode(t, &ordered{ends: tt.ends}, socket)
		c, told := New(WithDaemon(socket)), 0
		status, err := c.Hibernate(t.Context(), vm, nil, func(s *nodev1.StatusResponse) { told++ })
		if !tt.is(err) || told == 0 || status.GetOperation().GetDigest() != tt.ends.GetDigest() {
			t.Errorf("%s: %v, %v, told %d times", name, status, err, told)
		}
		_ = c.Close()
	}
	socket := t.TempDir() + "/s"
	serveNode(t, &ordered{ends: &nodev1.Operation{}, asked: -1 << 30}, socket)
	c := New(WithDaemon(socket))
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := c.Hibernate(ctx, vm, nil, func(*nodev1.StatusResponse) { cancel() })
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "operation o goes on") {
		t.Errorf("interrupted: %v", err)
	}
}
