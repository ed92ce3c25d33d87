package node

import (
	"cmp"
	"context"
	"fmt"
	"sort"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// queriesAtOnce bounds the shims that are asked at the same time.
const queriesAtOnce = 16

// VMs lists the VMs of this node and all that the controller knows. A directory that cannot be
// read costs its part of the list only, and so does a controller or a shim that does not answer.
// A warning says so.
func (s *Service) VMs(ctx context.Context, req *nodev1.VMsRequest) (*nodev1.VMsResponse, error) {
	resp := &nodev1.VMsResponse{}
	if req.GetRecorded() {
		records, err := s.list(ctx)
		if err != nil {
			return nil, err
		}
		for _, rec := range records {
			if req.GetNamespace() == "" || req.GetNamespace() == rec.GetVm().GetNamespace() {
				resp.Vms = append(resp.Vms, recorded(rec))
			}
		}
		return resp, nil
	}
	local, err := s.local(ctx)
	if err != nil {
		resp.Warning = err.Error()
	}
	records, err := s.list(ctx)
	if err != nil {
		resp.Warning = strings.TrimPrefix(resp.Warning+"; records: "+err.Error(), "; ")
	}
	byName := map[string]*nodev1.VMInfo{}
	for _, rec := range records {
		byName[key(rec.GetVm())] = recorded(rec)
	}
	for name, info := range local {
		if known := byName[name]; known != nil {
			byName[name] = join(known, info, s.Config.Node)
			continue
		}
		byName[name] = info
	}
	if err := s.describe(ctx, byName); err != nil {
		resp.Warning = strings.TrimPrefix(resp.Warning+"; names and images: "+err.Error(), "; ")
	}
	if deletions, err := s.pendingDeletions(ctx); err == nil { // the warning above says the rest
		pending(byName, deletions)
	}
	for _, info := range byName {
		if req.GetNamespace() == "" || req.GetNamespace() == info.GetVm().GetNamespace() {
			resp.Vms = append(resp.Vms, info)
		}
	}
	sort.Slice(resp.Vms, func(i, j int) bool { return key(resp.Vms[i].GetVm()) < key(resp.Vms[j].GetVm()) })
	return resp, nil
}

func key(vm *nodev1.VM) string { return vm.GetNamespace() + "/" + vm.GetId() }

// list answers all records. Where some cannot be read it answers the others, and an error.
func (s *Service) list(ctx context.Context) ([]*nodev1.Record, error) {
	records, unread, err := s.listRead(ctx)
	return records, cmp.Or(err, unread)
}

// listRead answers the records that can be read, and what says which cannot.
func (s *Service) listRead(ctx context.Context) (records []*nodev1.Record, unread, err error) {
	ctx, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	resp, err := s.Records.List(ctx, &nodev1.ListRequest{})
	if err == nil && len(resp.GetUnread()) > 0 {
		unread = fmt.Errorf("those of %s cannot be read: %w", strings.Join(resp.GetUnread(), ", "), errdefs.ErrDataLoss)
	}
	return resp.GetRecords(), unread, err
}

// local asks the shim of every VM of which this node holds something, as far as it could be listed.
func (s *Service) local(ctx context.Context) (map[string]*nodev1.VMInfo, error) {
	vms, err := s.Shims.List()
	infos := make([]*nodev1.VMInfo, len(vms))
	group := errgroup.Group{}
	group.SetLimit(queriesAtOnce)
	for i, vm := range vms {
		group.Go(func() error {
			infos[i] = s.query(ctx, vm)
			return nil
		})
	}
	_ = group.Wait() // query has no error: a silent shim is a status
	byName := make(map[string]*nodev1.VMInfo, len(vms))
	for i, vm := range vms {
		infos[i].Node = s.Config.Node
		byName[key(vm)] = infos[i]
	}
	return byName, err
}

func (s *Service) query(ctx context.Context, vm *nodev1.VM) *nodev1.VMInfo {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	info := &nodev1.VMInfo{Vm: vm, Status: "unknown"}
	q, err := s.Shims.Query(ctx, vm)
	if err != nil {
		info.Note = err.Error()
		return info
	}
	return running(info, q)
}

// running fills in what a shim said.
func running(info *nodev1.VMInfo, q *machinev1.QueryResponse) *nodev1.VMInfo {
	info.Uid, info.Status, info.Generation = q.GetUid(), q.GetState(), q.GetGeneration()
	info.Memory, info.Resident, info.Vcpus, info.Vmm = q.GetMemory(), q.GetResident(), q.GetVcpus(), q.GetVmm()
	info.Addresses, info.Network, info.Pid = q.GetAddresses(), q.GetNetwork(), q.GetTaskPid()
	info.Restore, info.RestoreMode, info.RestoreReason = q.GetRestore(), q.GetRestoreMode(), q.GetRestoreReason()
	info.Missing, info.Unwritten, info.WritableBytes = q.GetMissing(), q.GetUnwritten(), q.GetWritableBytes()
	return info
}

// statuses of a VM under an open operation.
var statuses = map[nodev1.Kind]string{
	nodev1.Kind_KIND_HIBERNATE: "hibernating",
	nodev1.Kind_KIND_WAKE:      "waking",
	nodev1.Kind_KIND_MIGRATE:   "migrating",
}

// owned is a VM that runs, or did, at a node of which the record alone is known.
const owned = "owned"

// recorded is what the record alone says. A VM that a live move has lost is its
// destination's by name until somebody decides: lost comes first.
func recorded(rec *nodev1.Record) *nodev1.VMInfo {
	info := &nodev1.VMInfo{
		Vm: rec.GetVm(), Uid: rec.GetUid(), Owner: rec.GetOwner(), Generation: rec.GetGeneration(),
		Operation: rec.GetOperation(), Deletion: rec.GetDeletion(), Node: rec.GetOwner().GetNode(), Name: rec.GetName(),
	}
	if info.GetNode() == "" {
		info.Node = rec.GetHome()
	}
	switch {
	case moves(rec):
		info.Status = statuses[rec.GetOperation().GetKind()]
	case rec.GetOwner().GetDigest() != "":
		info.Status = "hibernated"
		for _, s := range rec.GetSnapshots() {
			if s.GetDigest() == rec.GetOwner().GetDigest() {
				info.SleptUnixNano = s.GetCreatedUnixNano()
			}
		}
	case record.IsLost(rec):
		info.Status, info.Note = "lost", record.LostText(rec)
	case rec.GetOwner().GetNode() != "":
		info.Status = owned
	default:
		info.Status = "stopped"
	}
	return info
}

// moves reports whether an operation is about to change where the VM is. A checkpoint is
// not: the VM runs but for a moment.
func moves(rec *nodev1.Record) bool {
	return rec.GetOperation() != nil && rec.GetOperation().GetKind() != nodev1.Kind_KIND_CHECKPOINT
}

// join is what the record and the shim say. The record wins where both speak, except for
// the state of a VM that this node owns.
func join(known, local *nodev1.VMInfo, node string) *nodev1.VMInfo {
	if known.GetStatus() == owned && known.GetOwner().GetNode() == node {
		known.Status = ""
	}
	both := proto.CloneOf(local)
	proto.Merge(both, known)
	return both
}
