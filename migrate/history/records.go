package history

import (
	"context"
	"sync"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Shims are the records as the shims of this node have them. A shim that restores a VM by itself, for a start of its
// container, takes the steps of a wake there: they are told as those of the engine are.
type Shims struct {
	nodev1.RecordsService
	History *History

	mu   sync.Mutex
	open map[string]*nodev1.Operation // wakes, by id
}

// Open implements nodev1.RecordsService.
func (s *Shims) Open(ctx context.Context, req *nodev1.OpenRequest) (*nodev1.Record, error) {
	rec, err := s.RecordsService.Open(ctx, req)
	if op := rec.GetOperation(); err == nil && op.GetKind() == nodev1.Kind_KIND_WAKE && !op.GetManaged() {
		s.mu.Lock()
		if s.open == nil {
			s.open = map[string]*nodev1.Operation{}
		}
		s.open[op.GetId()] = op
		s.mu.Unlock()
		s.tell(req.GetVm(), op, &nodev1.NodeEvent{Phase: Begun, Attempt: op.GetAttempt(), Digest: op.GetDigest(),
			Reason: op.GetNote()})
	}
	return rec, err
}

// Commit implements nodev1.RecordsService.
func (s *Shims) Commit(ctx context.Context, req *nodev1.CommitRequest) (*nodev1.Record, error) {
	rec, err := s.RecordsService.Commit(ctx, req)
	if op := s.known(req.GetOperation()); err == nil && op != nil {
		s.tell(req.GetVm(), op, &nodev1.NodeEvent{Phase: Committed, Attempt: req.GetAttempt(), Digest: op.GetDigest()})
	}
	return rec, err
}

// Finish implements nodev1.RecordsService. What ends otherwise is told by Settle.
func (s *Shims) Finish(ctx context.Context, req *nodev1.FinishRequest) (*nodev1.Record, error) {
	rec, err := s.RecordsService.Finish(ctx, req)
	op, phase := s.known(req.GetOperation()), closed[req.GetPhase()]
	if err == nil && op != nil && phase != "" {
		s.tell(req.GetVm(), op, &nodev1.NodeEvent{Phase: phase, Attempt: req.GetAttempt(), Digest: op.GetDigest(),
			Reason: req.GetReason()})
		s.mu.Lock()
		delete(s.open, req.GetOperation())
		s.mu.Unlock()
	}
	return rec, err
}

func (s *Shims) known(operation string) *nodev1.Operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[operation]
}

func (s *Shims) tell(vm *nodev1.VM, op *nodev1.Operation, ev *nodev1.NodeEvent) {
	ev.Type, ev.Event, ev.Vm, ev.Operation = TypeOperation, operations[op.GetKind()], vm, op.GetId()
	ev.Destination = op.GetDestination()
	s.History.Add(ev)
}
