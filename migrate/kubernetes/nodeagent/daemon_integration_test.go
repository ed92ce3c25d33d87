//go:build integration

package nodeagent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

var errFault = fmt.Errorf("no answer, says the test: %w", errdefs.ErrUnavailable)

// fault of a call of the fake godwitd.
type fault int

const (
	none fault = iota
	refused
	answerLost // it did what it was asked
)

// godwitd is a fake one that keeps real records, and moves them as the engine does. It knows an operation by its id
// for ever, refuses a second one of a VM, and goes on when its callers end.
type godwitd struct {
	records *controller.Service
	hold    chan struct{} // captures wait for it; nil: they do not

	mu       sync.Mutex
	at       int // the call that fails
	fault    fault
	calls    int
	refuses  error // each order that is new
	refusals int
	captures []string // ids of those that have begun
	atOnce   map[string]int
	most     int // captures of one VM at once
	ended    sync.WaitGroup
}

func (g *godwitd) call(do func() (*nodev1.StatusResponse, error)) (*nodev1.StatusResponse, error) {
	g.mu.Lock()
	g.calls++
	f := none
	if g.calls == g.at {
		f = g.fault
	}
	g.mu.Unlock()
	if f == refused {
		return nil, errFault
	}
	s, err := do()
	if f == answerLost {
		return nil, errFault
	}
	return s, err
}

func (g *godwitd) begun() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.captures...)
}

func describe(op *nodev1.Operation) *nodev1.StatusResponse {
	return &nodev1.StatusResponse{Operation: op, Settled: transition.Settled(op.GetPhase()),
		Figures: &nodev1.Figures{TotalBytes: 9}}
}

// Status implements Daemon.
func (g *godwitd) Status(ctx context.Context, req *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	return g.call(func() (*nodev1.StatusResponse, error) { return g.look(ctx, req.GetOperation()) })
}

func (g *godwitd) look(ctx context.Context, id string) (*nodev1.StatusResponse, error) {
	resp, err := g.records.Operation(ctx, &nodev1.OperationRequest{Id: id})
	if err != nil {
		return nil, err
	}
	return describe(resp.GetOperation()), nil
}

// Checkpoint implements Daemon.
func (g *godwitd) Checkpoint(ctx context.Context, req *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error) {
	return g.call(func() (*nodev1.StatusResponse, error) {
		if s, err := g.look(ctx, req.GetOperation()); !errdefs.IsNotFound(err) {
			return s, err
		}
		g.mu.Lock()
		refuses := g.refuses
		g.refusals++
		g.mu.Unlock()
		if refuses != nil {
			return nil, refuses
		}
		rec, err := g.records.Get(ctx, &nodev1.GetRequest{Vm: req.GetVm()})
		if err != nil {
			return nil, err
		}
		if rec.GetUid() != req.GetUid() || req.GetGeneration() != 0 && rec.GetGeneration() != req.GetGeneration() {
			return nil, &record.HeldError{Call: "checkpoint", Record: rec}
		}
		op := &nodev1.Operation{Id: req.GetOperation(), Kind: nodev1.Kind_KIND_CHECKPOINT, Attempt: 1, Source: "a",
			Generation: rec.GetGeneration(), Managed: true, Manual: true, SnapshotName: req.GetName(),
			Repository: cmp.Or(req.GetPrefix(), "r") + "/" + rec.GetUid(), Prefix: req.GetPrefix(),
			Tag: "t-" + req.GetOperation()}
		rec, err = g.records.Open(ctx, &nodev1.OpenRequest{Vm: req.GetVm(), Operation: op, Uid: rec.GetUid()})
		if err != nil {
			return nil, err
		}
		g.mu.Lock()
		g.captures = append(g.captures, op.GetId())
		g.mu.Unlock()
		g.ended.Go(func() { g.drive(rec) })
		return describe(rec.GetOperation()), nil
	})
}

// drive takes an operation to its end, also if it is followed no more.
func (g *godwitd) drive(rec *nodev1.Record) {
	vm, op, ctx := rec.GetVm(), rec.GetOperation(), context.Background()
	g.count(vm.GetId(), 1)
	defer g.count(vm.GetId(), -1)
	if g.hold != nil {
		<-g.hold
	}
	sum := sha256.Sum256([]byte(op.GetId()))
	digest := "sha256:" + hex.EncodeToString(sum[:])
	advance := func(phase nodev1.Phase) error {
		req := &nodev1.AdvanceRequest{Vm: vm, Operation: op.GetId(), Attempt: 1, Generation: op.GetGeneration(), Phase: phase}
		if phase == nodev1.Phase_PHASE_SWITCHING {
			req.Digest = digest
			req.Receipt = record.Receipt{Operation: op.GetId(), Attempt: 1, Generation: op.GetGeneration(), Digest: digest,
				TotalBytes: 9}.String()
		}
		_, err := g.records.Advance(ctx, req)
		return err
	}
	end := nodev1.Phase_PHASE_SUCCEEDED
	if err := errors.Join(advance(nodev1.Phase_PHASE_TRANSFERRING), advance(nodev1.Phase_PHASE_SWITCHING)); err != nil {
		end = nodev1.Phase_PHASE_ABORTED // it was called off
	} else if _, err := g.records.Commit(ctx, &nodev1.CommitRequest{Vm: vm, Operation: op.GetId(), Attempt: 1,
		Generation: op.GetGeneration(), Owner: &nodev1.Owner{Node: "a"}}); err != nil {
		panic(err)
	} else if err := advance(nodev1.Phase_PHASE_CLEANING); err != nil {
		panic(err)
	}
	if _, err := g.records.Finish(ctx, &nodev1.FinishRequest{Vm: vm, Operation: op.GetId(), Attempt: 1,
		Generation: op.GetGeneration(), Phase: end, Reason: "the fake ends it"}); err != nil {
		panic(err)
	}
}

func (g *godwitd) count(vm string, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.atOnce == nil {
		g.atOnce = map[string]int{}
	}
	g.atOnce[vm] += n
	g.most = max(g.most, g.atOnce[vm])
}

// Abort implements Daemon.
func (g *godwitd) Abort(ctx context.Context, req *nodev1.AbortRequest) (*nodev1.StatusResponse, error) {
	return g.call(func() (*nodev1.StatusResponse, error) {
		s, err := g.look(ctx, req.GetOperation())
		if err != nil {
			return nil, err
		}
		op := s.GetOperation()
		if _, err := g.records.Advance(ctx, &nodev1.AdvanceRequest{Vm: op.GetVm(), Operation: op.GetId(), Attempt: 1,
			Generation: op.GetGeneration(), Phase: nodev1.Phase_PHASE_ABORTING, Reason: req.GetReason(), Cancelled: true,
		}); err != nil {
			return nil, err
		}
		return g.look(ctx, op.GetId())
	})
}
