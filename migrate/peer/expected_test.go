package peer

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/migrate/engine"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// sandbox is a shim that CRI has made, or not yet.
type sandbox struct {
	shims
	missing []string
	err     error // of its answer
	fenced  bool
	refusal string // why it is
	calls   []string
}

func (s *sandbox) Incoming(_ context.Context, _ *nodev1.VM, r *machinev1.IncomingRequest) (*machinev1.IncomingResponse,
	error) {
	if s.err != nil {
		return nil, s.err
	}
	return &machinev1.IncomingResponse{Channel: "c", Certificate: []byte("d"), Missing: s.missing}, nil
}

func (s *sandbox) GivenUp(*nodev1.VM, *machinev1.Ref) (bool, string, error) {
	return s.fenced, s.refusal, nil
}

func (s *sandbox) Run(context.Context, *nodev1.VM, *machinev1.RunRequest) (*machinev1.RunResponse, error) {
	s.calls = append(s.calls, "run")
	return &machinev1.RunResponse{}, s.err
}

func (s *sandbox) Abort(context.Context, *nodev1.VM, *machinev1.AbortRequest) error {
	s.calls = append(s.calls, "abort")
	return s.err
}

// untold is a containerd that has no container of that name, as of a pod.
type untold struct{ engine.Tasks }

func (untold) Running(context.Context, *nodev1.VM) (bool, error)      { return false, nil }
func (untold) Start(context.Context, *nodev1.VM) error                { return errdefs.ErrNotFound }
func (untold) Undo(context.Context, *nodev1.VM, engine.Restore) error { return nil }

// TestPodIsAwaited: a destination waits for each container of a pod that CRI has not started, and names them. It tells
// the sandbox's shim what it was ordered. An error of the shim is none of "it is not there".
func TestPodIsAwaited(t *testing.T) {
	vm, ref := &nodev1.VM{Namespace: "k8s.io", Id: "team.web"}, &machinev1.Ref{Operation: "op", Attempt: 2}
	data, err := json.Marshal(&spec.Spec{Version: 2, Pod: &spec.Pod{Namespace: "team", Name: "web"}})
	if err != nil {
		t.Fatal(err)
	}
	shim := &sandbox{err: errdefs.ErrNotFound}
	s := &Server{Node: "b", Address: "b:1", Machines: shim, Tasks: untold{}}
	prepare := func() (*nodev1.PeerPrepareResponse, error) {
		return s.Prepare(t.Context(), &nodev1.PeerPrepareRequest{Vm: vm, Ref: ref,
			Offer: &machinev1.OfferResponse{Spec: data, Resume: []byte("{}"), Certificate: []byte("source")}})
	}
	if _, err := s.Expected(t.Context(), &nodev1.ExpectedRequest{Vm: vm}); !errdefs.IsUnavailable(err) {
		t.Errorf("before the order: %v", err)
	}
	for want, answer := range map[string]sandbox{
		"its sandbox and its containers:": {err: errdefs.ErrNotFound}, "for its sandbox": {err: errdefs.ErrUnavailable},
		"for log, side:": {missing: []string{"log", "side"}},
	} {
		shim.err, shim.missing = answer.err, answer.missing
		if resp, err := prepare(); err != nil || !strings.Contains(resp.GetWaits(), want) || resp.GetAddress() != "" {
			t.Errorf("%v: %v, %v", answer, resp, err)
		}
	}
	order, err := s.Expected(t.Context(), &nodev1.ExpectedRequest{Vm: vm})
	if err != nil || order.GetOperation() != "op" || order.GetAttempt() != 2 ||
		string(order.GetStream().GetCertificate()) != "source" || string(order.GetStream().GetResume()) != "{}" {
		t.Errorf("order %v, %v", order, err)
	}
	if shim.err = errdefs.ErrFailedPrecondition; true {
		if _, err := prepare(); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("other containers: %v", err)
		}
	}
	for _, gone := range []error{errdefs.ErrNotFound, errdefs.ErrUnavailable} {
		shim.err, shim.fenced = gone, true
		if _, err := prepare(); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("what waited was given up: %v", err)
		}
		shim.refusal = "it has another address"
		if _, err := prepare(); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), shim.refusal) {
			t.Errorf("what waited has refused: %v", err)
		}
	}
	shim.err, shim.missing = nil, nil
	if resp, err := prepare(); err != nil || resp.GetWaits() != "" || resp.GetAddress() != "b:1" ||
		resp.GetChannel() != "c" {
		t.Errorf("all are there: %v, %v", resp, err)
	}
}

// TestPodRunsByItsShim: containerd has no task by the name of a pod's VM. The shim is told to run it, also where the
// daemon has forgotten the order, and to end it.
func TestPodRunsByItsShim(t *testing.T) {
	vm, ref := &nodev1.VM{Namespace: "k8s.io", Id: "team.web"}, &machinev1.Ref{Operation: "op", Attempt: 1}
	req := &nodev1.PeerRef{Vm: vm, Ref: ref}
	for _, forgotten := range []bool{false, true} {
		shim := &sandbox{shims: shims{query: &machinev1.QueryResponse{State: "created", Record: "READY", Ref: ref}}}
		s := &Server{Node: "b", Machines: shim, Tasks: untold{}}
		if !forgotten {
			s.expected.note(vm, restoreOf(ref, ""))
		}
		if resp, err := s.Run(t.Context(), req); err != nil || !resp.GetRunning() || !slices.Equal(shim.calls,
			[]string{"run"}) {
			t.Errorf("forgotten %v: %v, %v, %q", forgotten, resp, err, shim.calls)
		}
	}
	shim := &sandbox{err: errdefs.ErrUnavailable}
	s := &Server{Node: "b", Machines: shim, Tasks: untold{}}
	s.expected.note(vm, restoreOf(ref, ""))
	if _, err := s.Discard(t.Context(), req); !errdefs.IsUnavailable(err) {
		t.Errorf("discard of a shim that does not answer: %v", err)
	}
	shim.err = errdefs.ErrNotFound
	if _, err := s.Discard(t.Context(), req); err != nil || !slices.Equal(shim.calls, []string{"abort", "abort"}) {
		t.Errorf("discard: %v, %q", err, shim.calls)
	}
	if s.expected.has(vm, ref) {
		t.Error("what was discarded is expected still")
	}
}
