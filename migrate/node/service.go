// Package node is the node service of godwitd: what the CLI asks of one node. It holds
// no state of its own; what it says comes from the records, the shims and the engine.
package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/migrate/transition"
)

// Bounds of the questions that one answer is put together from.
const (
	queryTimeout   = time.Second
	recordsTimeout = 3 * time.Second
)

// Engine runs the operations.
type Engine interface {
	Hibernate(ctx context.Context, req *nodev1.HibernateRequest) (*nodev1.StatusResponse, error)
	Wake(ctx context.Context, req *nodev1.WakeRequest) (*nodev1.StatusResponse, error)
	Checkpoint(ctx context.Context, req *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error)
	Delete(ctx context.Context, req *nodev1.DeleteRequest) (*nodev1.Record, error)
	// Enroll gives a VM that runs here without a record its record; stays: it runs on after the order.
	Enroll(ctx context.Context, vm *nodev1.VM, stays bool) error
	Status(ctx context.Context, operation string) (*nodev1.StatusResponse, error)
	Cleaner
}

// Cleaner deletes snapshots that nothing needs.
type Cleaner interface {
	// Clean does the pending deletions of a VM. What it cannot delete stays pending.
	Clean(ctx context.Context, vm *nodev1.VM) error
	Prune(ctx context.Context, req *nodev1.PruneRequest) (*nodev1.PruneResponse, error)
}

// Shims answers what runs here.
type Shims interface {
	List() ([]*nodev1.VM, error)
	Query(ctx context.Context, vm *nodev1.VM) (*machinev1.QueryResponse, error)
}

// Snapshots is the store of snapshots as a person looks at it.
type Snapshots interface {
	Inspect(ctx context.Context, repository, digest string) (manifest, config json.RawMessage, err error)
	Verify(ctx context.Context, repository, digest string) (*nodev1.VerifyResponse, error)
	Diff(ctx context.Context, req *nodev1.DiffRequest) (*nodev1.DiffResponse, error)
	Copy(ctx context.Context, req *nodev1.CopyRequest) (*nodev1.CopyResponse, error)
}

// Service implements godwit.node.v1.Node. It answers errors of errdefs' classes; the
// server of package controller puts them on the wire.
type Service struct {
	Config    *config.Config
	Records   nodev1.RecordsService
	Engine    Engine
	Shims     Shims
	Snapshot  Snapshots
	Boots     Templates                                            // states after a boot
	Goldens   Templates                                            // pages of images
	Reachable func(context.Context) error                          // the controller; nil error: it answers
	Up        func(ctx context.Context, node string) (bool, error) // whether a node is heard; nil: that is not known
	Place     func(*nodev1.Record) string                          // where this node keeps a VM's snapshots; nil: nowhere
	Admits    func(context.Context) error                          // whether VMs may come by name; nil: they may
	Checks    []Check                                              // made for an Info that asks for them
	// Release frees what the source of an operation has of a VM; nil: it is not freed.
	Release func(ctx context.Context, vm *nodev1.VM, req *machinev1.ReleaseRequest) error
	// GiveUp ends the claim of this node on a VM of which nothing is here; nil: it stays.
	GiveUp func(ctx context.Context, rec *nodev1.Record) error
	// Containers tells what this node's containerd has of VMs: name, image and when it was made; nil: it is not asked.
	Containers func(context.Context) ([]*nodev1.VMInfo, error)
	Events     Events // what has happened here; nil: nothing is kept
	// Label gives a container without a name one, unless another container of this node has it; nil: none gets one.
	Label func(ctx context.Context, vm *nodev1.VM, name string) error
	// Arriving answers what was ordered of a pod that is to move here; nil: no moves are known.
	Arriving func(ctx context.Context, req *nodev1.ExpectedRequest) (*nodev1.ExpectedResponse, error)
	// ImageOf answers which image CRI has made a container of; nil: containerd is not asked.
	ImageOf func(ctx context.Context, namespace, container string) (string, error)
}

// Events is the history of this node.
type Events interface {
	Read(ctx context.Context, req *nodev1.HistoryRequest) *nodev1.HistoryResponse
}

// History implements nodev1.NodeService.
func (s *Service) History(ctx context.Context, req *nodev1.HistoryRequest) (*nodev1.HistoryResponse, error) {
	if s.Events == nil {
		return nil, fmt.Errorf("this node keeps no events: %w", errdefs.ErrFailedPrecondition)
	}
	return s.Events.Read(ctx, req), nil
}

// Expected implements nodev1.NodeService.
func (s *Service) Expected(ctx context.Context, req *nodev1.ExpectedRequest) (*nodev1.ExpectedResponse, error) {
	if err := transition.CheckVM(req.GetVm()); err != nil {
		return nil, err
	}
	if s.Arriving == nil {
		return nil, fmt.Errorf("this node knows of no moves: %w", errdefs.ErrUnavailable)
	}
	return s.Arriving(ctx, req)
}

// Check asks for one thing that the daemon needs, and says what it found.
type Check struct {
	Name, Remedy string
	Ask          func(context.Context) (detail string, err error)
}

var _ nodev1.NodeService = (*Service)(nil)

// Info tells who this daemon is and whether it can do its work.
func (s *Service) Info(ctx context.Context, req *nodev1.InfoRequest) (*nodev1.InfoResponse, error) {
	resp := &nodev1.InfoResponse{
		Version: version.Version, Commit: version.Commit, Node: s.Config.Node,
		Controller: s.Config.Controller.Address, Repository: s.Config.Registry.Repository,
	}
	if resp.Controller == "" {
		resp.Controller = "self"
	}
	if s.Config.Registry.Layout != "" {
		resp.Repository = s.Config.Registry.Layout
	}
	if req.GetCheck() {
		resp.Checks = s.check(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	if err := s.Reachable(ctx); err != nil {
		resp.Error = err.Error()
		return resp, nil
	}
	resp.ControllerReachable = true
	return resp, nil
}

// checkTimeout bounds one check: doctor is asked when something hangs.
const checkTimeout = 5 * time.Second

func (s *Service) check(ctx context.Context) []*nodev1.Check {
	all := make([]*nodev1.Check, 0, len(s.Checks))
	for _, c := range s.Checks {
		bound, cancel := context.WithTimeout(ctx, checkTimeout)
		detail, err := c.Ask(bound)
		cancel()
		found := &nodev1.Check{Name: c.Name, Detail: detail}
		if err != nil {
			found.Error, found.Remedy = err.Error(), c.Remedy
		}
		all = append(all, found)
	}
	return all
}

// Hibernate starts the operation and answers once it is durable.
func (s *Service) Hibernate(ctx context.Context, req *nodev1.HibernateRequest) (*nodev1.StatusResponse, error) {
	if err := s.enrolled(ctx, req.GetVm(), false); err != nil {
		return nil, err
	}
	return s.Engine.Hibernate(ctx, req)
}

// Wake starts the operation and answers once it is durable.
func (s *Service) Wake(ctx context.Context, req *nodev1.WakeRequest) (*nodev1.StatusResponse, error) {
	err := s.checkOrder(req.GetVm())
	if err == nil && s.Admits != nil {
		if err = s.Admits(ctx); err != nil {
			err = fmt.Errorf("wake VM %s: %w", key(req.GetVm()), err)
		}
	}
	if err == nil && req.GetForce() && req.GetDigest() == "" {
		err = fmt.Errorf("force: name the digest to restore: %w", errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, err
	}
	return s.Engine.Wake(ctx, req)
}

// Checkpoint starts the operation and answers once it is durable.
func (s *Service) Checkpoint(ctx context.Context, req *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error) {
	if err := s.enrolled(ctx, req.GetVm(), true); err != nil {
		return nil, err
	}
	return s.Engine.Checkpoint(ctx, req)
}

// Schedule is the record's to keep.
func (s *Service) Schedule(ctx context.Context, req *nodev1.ScheduleRequest) (*nodev1.Record, error) {
	if err := s.enrolled(ctx, req.GetVm(), true); err != nil {
		return nil, err
	}
	return s.Records.Schedule(ctx, req)
}

// Delete orders a deletion after a final snapshot, or calls it off, which needs no store.
func (s *Service) Delete(ctx context.Context, req *nodev1.DeleteRequest) (*nodev1.Record, error) {
	if !req.GetCancel() {
		if err := s.enrolled(ctx, req.GetVm(), false); err != nil {
			return nil, err
		}
	}
	return s.Engine.Delete(ctx, req)
}

// Recorded follows what has no operation of its own.
func (s *Service) Recorded(ctx context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
	return s.Records.Get(ctx, req)
}

// Enroll gives a VM that runs here without a record its record, for an order to the controller.
func (s *Service) Enroll(ctx context.Context, vm *nodev1.VM) error {
	return s.Engine.Enroll(ctx, vm, true)
}

// enrolled is checkOrder for what an operation captures: the VM may have been started before this node had a
// store.
func (s *Service) enrolled(ctx context.Context, vm *nodev1.VM, stays bool) error {
	if err := s.checkOrder(vm); err != nil {
		return err
	}
	return s.Engine.Enroll(ctx, vm, stays)
}

// checkOrder refuses what no engine could do, before anything is written.
func (s *Service) checkOrder(vm *nodev1.VM) error {
	if vm.GetNamespace() == "" || vm.GetId() == "" {
		return fmt.Errorf("vm: namespace and id are needed: %w", errdefs.ErrInvalidArgument)
	}
	if !s.Config.HasStore() {
		return record.NoStore(s.Config.Node)
	}
	return nil
}

// Status follows an operation, open or closed.
func (s *Service) Status(ctx context.Context, req *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	return s.Engine.Status(ctx, req.GetOperation())
}
