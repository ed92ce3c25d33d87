// Package dashboardtest stands in for the daemon whose page is shown: its lists are set by a test, and each may fail.
package dashboardtest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// ErrAway is what a list answers that is away. Its text is HTML: the page must not take it for that.
var ErrAway = errors.New("store <b>away</b>")

// Source answers what a test has put in. Set the lists before the page is asked.
type Source struct {
	VMList    []*nodev1.VMInfo
	NodeList  []*nodev1.NodeInfo
	MoveList  []*nodev1.StatusResponse
	Snapshot  []*nodev1.SnapshotInfo
	Operation *nodev1.StatusResponse // what each Status answers; nil: none
	Warning   string

	mu    sync.Mutex
	away  map[string]bool
	asked int
}

// Away has the lists of these names, and no others, fail from now on: vms, nodes, moves, snapshots, status.
func (s *Source) Away(lists ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = map[string]bool{}
	for _, list := range lists {
		s.away[list] = true
	}
}

// Asked tells how often the VMs were asked for.
func (s *Source) Asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *Source) fails(what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if what == "vms" {
		s.asked++
	}
	if s.away[what] {
		return ErrAway
	}
	return nil
}

// VMs implements dashboard.Source.
func (s *Source) VMs(context.Context, *nodev1.VMsRequest) (*nodev1.VMsResponse, error) {
	return &nodev1.VMsResponse{Vms: s.VMList, Warning: s.Warning}, s.fails("vms")
}

// Nodes implements dashboard.Source.
func (s *Source) Nodes(context.Context, *nodev1.NodesRequest) (*nodev1.NodesResponse, error) {
	return &nodev1.NodesResponse{Nodes: s.NodeList}, s.fails("nodes")
}

// Moves implements dashboard.Source.
func (s *Source) Moves(context.Context, *nodev1.MovesRequest) (*nodev1.MovesResponse, error) {
	return &nodev1.MovesResponse{Moves: s.MoveList}, s.fails("moves")
}

// Snapshots implements dashboard.Source.
func (s *Source) Snapshots(_ context.Context, req *nodev1.SnapshotsRequest) (*nodev1.SnapshotsResponse, error) {
	resp := &nodev1.SnapshotsResponse{}
	for _, snapshot := range s.Snapshot {
		if req.GetVm() == nil || snapshot.GetVm().GetId() == req.GetVm().GetId() {
			resp.Snapshots = append(resp.Snapshots, snapshot)
		}
	}
	return resp, s.fails("snapshots")
}

// Status implements dashboard.Source.
func (s *Source) Status(context.Context, *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	if s.Operation == nil {
		return nil, ErrAway
	}
	return s.Operation, s.fails("status")
}

// VM is a VM of the namespace default.
func VM(id string) *nodev1.VM { return &nodev1.VM{Namespace: "default", Id: id} }

// Fixtures are a move under way, a VM that falls asleep, one that sleeps, one that is lost, one that runs.
func Fixtures(now time.Time) *Source {
	digest := "sha256:" + strings.Repeat("0f", 32)
	at := now.Add(-90 * time.Second).UnixNano()
	asleep := &nodev1.Operation{Id: "h1", Kind: nodev1.Kind_KIND_HIBERNATE, Vm: VM("sleepy"),
		Phase: nodev1.Phase_PHASE_TRANSFERRING}
	moves := &nodev1.Operation{Id: "m1", Kind: nodev1.Kind_KIND_MIGRATE, Vm: VM("api"), Source: "a", Destination: "b",
		Phase: nodev1.Phase_PHASE_TRANSFERRING, OpenedUnixNano: at}
	return &Source{
		VMList: []*nodev1.VMInfo{
			{Vm: VM("web"), Status: "running", Owner: &nodev1.Owner{Node: "a"}, Memory: 1 << 30, Resident: 300 << 20,
				Vcpus: 2, Vmm: "cloud-hypervisor", Addresses: []string{"10.88.0.7/16"}},
			{Vm: VM("api"), Status: "migrating", Owner: &nodev1.Owner{Node: "a"}, Memory: 2 << 30, Resident: 1 << 30,
				Vcpus: 4, Operation: &nodev1.Operation{Id: "m1", Kind: nodev1.Kind_KIND_MIGRATE}},
			{Vm: VM("sleepy"), Status: "hibernating", Owner: &nodev1.Owner{Node: "a"}, Operation: asleep},
			{Vm: VM("night"), Status: "hibernated", Owner: &nodev1.Owner{Digest: digest}},
			{Vm: VM("gone"), Status: "lost", Note: "node c is lost: godwit recover gone --to a --fenced"},
		},
		NodeList: []*nodev1.NodeInfo{
			{Name: "a", Up: true, Controller: true, Vms: 3, RamBytes: 8 << 30, FreeBytes: 5 << 30, Version: "v0.1.0"},
			{Name: "b", Up: true, Vms: 1, RamBytes: 8 << 30, FreeBytes: 7 << 30, Version: "v0.1.0"},
			{Name: "c", SeenUnixNano: now.Add(-time.Hour).UnixNano(), Vms: 1, Version: "v0.1.0"},
		},
		MoveList: []*nodev1.StatusResponse{{
			Operation: moves,
			Transfer: &nodev1.Transfer{Pass: 2, SentBytes: 900 << 20, LeftBytes: 300 << 20, DirtyRate: 4 << 20,
				DowntimeMs: 60},
			Figures: &nodev1.Figures{DowntimeMs: 84, CopyMs: 40, VoteMs: 9, CommitMs: 12, RunMs: 15, StopMs: 4,
				TotalMs: 9200, Passes: []*nodev1.Pass{{SentBytes: 800 << 20, Ms: 5100}, {SentBytes: 100 << 20, Ms: 900}}},
		}},
		Operation: &nodev1.StatusResponse{Operation: asleep, Step: "push", Done: 1 << 20, Total: 4 << 20},
		Snapshot: append(snapshots(now), &nodev1.SnapshotInfo{Vm: VM("night"), Digest: digest, Owner: true,
			CreatedUnixNano: now.Add(-36 * time.Hour).UnixNano(), RamBytes: 2 << 30, Bytes: 300 << 20}),
	}
}

// snapshots are those of web: it went back to the one from before an upgrade, and on from there.
func snapshots(now time.Time) []*nodev1.SnapshotInfo {
	digest := func(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }
	at := func(ago time.Duration) int64 { return now.Add(-ago).UnixNano() }
	const day = 24 * time.Hour
	all := []*nodev1.SnapshotInfo{
		{Digest: digest("1"), Bytes: 120 << 20, NewBytes: 120 << 20, CreatedUnixNano: at(9 * day), Node: "a", Spent: true},
		{Digest: digest("2"), Parent: digest("1"), Bytes: 124 << 20, NewBytes: 6 << 20, CreatedUnixNano: at(8 * day),
			Node: "a", Checkpoint: true, Manual: true, Pinned: true, Name: "before-upgrade"},
		{Digest: digest("3"), Parent: digest("2"), Bytes: 190 << 20, NewBytes: 71 << 20, CreatedUnixNano: at(7 * day),
			Node: "b", Checkpoint: true},
		{Digest: digest("4"), Parent: digest("3"), Bytes: 191 << 20, NewBytes: 3 << 20, CreatedUnixNano: at(6 * day),
			Node: "b"},
		{Digest: digest("5"), Parent: digest("2"), Bytes: 126 << 20, NewBytes: 4 << 20, CreatedUnixNano: at(time.Hour),
			Node: "a", Base: true, Checkpoint: true, Manual: true},
	}
	for _, snapshot := range all {
		snapshot.Vm = VM("web")
	}
	return all
}
