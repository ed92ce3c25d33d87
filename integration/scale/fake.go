package scale

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/migrate/engine"
)

// shims are those of one node, whose VMs run and do nothing. That one of them is ended, or its
// snapshot restored, is a violation: no order asks for that.
type shims struct {
	mu         sync.Mutex
	vms        map[string]*nodev1.VM
	generation map[string]uint64 // by id
	uids       map[string]string
	drops      map[string]int // by digest
	ended      []string
}

func newShims(node int) *shims {
	s := &shims{vms: map[string]*nodev1.VM{}, generation: map[string]uint64{}, uids: map[string]string{},
		drops: map[string]int{}}
	for i := range vmsOfNode {
		vm := vmOf(node, i)
		s.vms[vm.GetId()], s.generation[vm.GetId()], s.uids[vm.GetId()] = vm, firstGeneration, uidOf(node, i)
	}
	return s
}

// List is what engine.Round asks for.
func (s *shims) List() (all []*nodev1.VM, _ error) {
	for _, vm := range s.vms {
		all = append(all, vm)
	}
	return all, nil
}

// Query implements engine.Observer.
func (s *shims) Query(_ context.Context, vm *nodev1.VM) (*machinev1.QueryResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.vms[vm.GetId()] == nil {
		return nil, errdefs.ErrNotFound
	}
	return &machinev1.QueryResponse{Record: "OWN", State: "running", Uid: s.uids[vm.GetId()],
		Generation: s.generation[vm.GetId()]}, nil
}

// claimed notes the generation that a claim was answered with.
func (s *shims) claimed(rec *nodev1.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := rec.GetVm().GetId()
	s.generation[id] = max(s.generation[id], rec.GetGeneration())
}

// wrong notes a call that a fleet in which nothing happens must not see.
func (s *shims) wrong(call string, vm *nodev1.VM) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, call+" "+vm.GetId())
	return fmt.Errorf("%s: %w", call, errdefs.ErrNotImplemented)
}

// machines implements engine.Machines.
type machines struct{ *shims }

func (m machines) Capture(_ context.Context, vm *nodev1.VM, _ *machinev1.CaptureRequest) (*machinev1.CaptureResponse,
	error) {
	return nil, m.wrong("Capture", vm)
}

func (m machines) Vote(_ context.Context, vm *nodev1.VM, _ *machinev1.VoteRequest) (*machinev1.VoteResponse, error) {
	return nil, m.wrong("Vote", vm)
}

func (m machines) Abort(_ context.Context, vm *nodev1.VM, _ *machinev1.AbortRequest) error {
	return m.wrong("Abort", vm)
}

func (m machines) Release(_ context.Context, vm *nodev1.VM, _ *machinev1.ReleaseRequest) error {
	return m.wrong("Release", vm)
}

func (m machines) Revert(_ context.Context, vm *nodev1.VM, _ *machinev1.RevertRequest) (*machinev1.RevertResponse,
	error) {
	return nil, m.wrong("Revert", vm)
}

func (m machines) EndSuperseded(_ context.Context, vm *nodev1.VM, _ uint64, _ string) error {
	return m.wrong("EndSuperseded", vm)
}

// containers implements engine.Tasks and engine.Departed.
type containers struct{ *shims }

func (c containers) Create(_ context.Context, vm *nodev1.VM, _ engine.Restore) error {
	return c.wrong("Create", vm)
}

func (c containers) Start(_ context.Context, vm *nodev1.VM) error { return c.wrong("Start", vm) }

func (c containers) Running(context.Context, *nodev1.VM) (bool, error) { return true, nil }

func (c containers) Undo(_ context.Context, vm *nodev1.VM, _ engine.Restore) error {
	return c.wrong("Undo", vm)
}

func (c containers) Clear(_ context.Context, vm *nodev1.VM, _ engine.Restore) error {
	return c.wrong("Clear", vm)
}

func (c containers) MarkDeparted(_ context.Context, vm *nodev1.VM, _ int64, _, _ string) error {
	return c.wrong("MarkDeparted", vm)
}

func (c containers) CleanDeparted(_ context.Context, vm *nodev1.VM, _, _ string) error {
	return c.wrong("CleanDeparted", vm)
}

func (c containers) RemoveDeparted(_ context.Context, vm *nodev1.VM, _ string) error {
	return c.wrong("RemoveDeparted", vm)
}

// snapshots implements engine.Snapshots: a store that takes each deletion, and counts it.
type snapshots struct{ *shims }

func (s snapshots) Exists(context.Context, string, string) (bool, error)       { return true, nil }
func (s snapshots) Readable(context.Context, string, string) error             { return nil }
func (s snapshots) Accepts(context.Context, string) error                      { return nil }
func (s snapshots) Reaches(context.Context, *nodev1.SnapshotRef) (bool, error) { return true, nil }

func (s snapshots) Drop(_ context.Context, _, digest, _, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drops[digest]++
	return nil
}

func (s snapshots) Leftovers(context.Context, string) ([]engine.Leftover, error) { return nil, nil }

func (s snapshots) Collect(context.Context, string, time.Duration, bool) (int, uint64, error) {
	return 0, 0, nil
}

func (s snapshots) Abandoned(context.Context, func(string) bool, time.Duration, bool) ([]engine.Freed, error) {
	return nil, nil
}

// quiet implements engine.Events.
type quiet struct{}

func (quiet) Event(context.Context, engine.Event) {}
