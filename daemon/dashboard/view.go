package dashboard

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// maxRows bounds the VMs, and what is under way, on one page.
const maxRows = 500

// view is what the templates get.
type view struct {
	Node  string
	Now   time.Time
	State state
	VMs   []*nodev1.VMInfo
	More  int // VMs that are left away
	Under []*nodev1.StatusResponse
	Later int // of Under, left away
	Count counts
	Saved saving
}

// counts are the figures at the head of the page.
type counts struct {
	Running, Asleep, Lost, Other int
	NodesUp, Nodes               int
}

func (p *Page) view(r *http.Request) view { return p.viewOf(r.Context()) }

func (p *Page) viewOf(ctx context.Context) view {
	s := p.state(ctx)
	v := view{Node: p.Node, Now: p.Now(), State: s}
	v.VMs = slices.SortedFunc(slices.Values(s.VMs.Value.GetVms()), func(a, b *nodev1.VMInfo) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.GetVm().GetNamespace(), b.GetVm().GetNamespace()),
			cmp.Compare(a.GetVm().GetId(), b.GetVm().GetId()))
	})
	for _, vm := range v.VMs {
		v.Count.add(vm)
	}
	v.Saved = savingOf(v.VMs, s.Snapshots.Value.GetSnapshots(), v.Now)
	if len(v.VMs) > maxRows {
		v.VMs, v.More = v.VMs[:maxRows], len(v.VMs)-maxRows
	}
	v.Under = slices.Clone(s.Moves.Value.GetMoves())
	for _, status := range s.Under {
		v.Under = append(v.Under, status)
	}
	slices.SortFunc(v.Under, func(a, b *nodev1.StatusResponse) int {
		return cmp.Or(cmp.Compare(a.GetOperation().GetOpenedUnixNano(), b.GetOperation().GetOpenedUnixNano()),
			cmp.Compare(a.GetOperation().GetId(), b.GetOperation().GetId()))
	})
	if len(v.Under) > maxRows {
		v.Under, v.Later = v.Under[:maxRows], len(v.Under)-maxRows
	}
	for _, n := range s.Nodes.Value.GetNodes() {
		v.Count.Nodes++
		if n.GetUp() {
			v.Count.NodesUp++
		}
	}
	return v
}

func (c *counts) add(vm *nodev1.VMInfo) {
	switch vm.GetStatus() {
	case "running", "owned":
		c.Running++
	case "hibernated":
		c.Asleep++
	case "lost":
		c.Lost++
	default:
		c.Other++
	}
}

// rank puts first what needs a person, then what is under way.
func rank(vm *nodev1.VMInfo) int {
	switch {
	case vm.GetStatus() == "lost":
		return 0
	case vm.GetStatus() == "unknown":
		return 1
	case vm.GetOperation() != nil:
		return 2
	}
	return 3
}

// detail is what the page of one VM gets.
type detail struct {
	Node      string
	Now       time.Time
	VM        *nodev1.VM
	VMs       list[*nodev1.VMsResponse]
	Info      *nodev1.VMInfo // nil: the list has none
	Snapshots list[*nodev1.SnapshotsResponse]
	Tree      []record.Branch // of Snapshots, the oldest first
	Moves     list[*nodev1.MovesResponse]
}

func (p *Page) detail(r *http.Request, vm *nodev1.VM) detail {
	ctx, cancel := context.WithTimeout(r.Context(), patient)
	defer cancel()
	d := detail{Node: p.Node, Now: p.Now(), VM: vm, VMs: p.state(ctx).VMs}
	for _, info := range d.VMs.Value.GetVms() {
		if info.GetVm().GetNamespace() == vm.GetNamespace() && info.GetVm().GetId() == vm.GetId() {
			d.Info = info
		}
	}
	snapshots, err := p.Source.Snapshots(ctx, &nodev1.SnapshotsRequest{Vm: vm})
	d.Snapshots.take(snapshots, err, p.Now())
	d.Tree = record.Tree(d.Snapshots.Value.GetSnapshots())
	moves, err := p.Source.Moves(ctx, &nodev1.MovesRequest{Vm: vm, Closed: true})
	d.Moves.take(moves, err, p.Now())
	slices.SortFunc(d.Moves.Value.GetMoves(), func(a, b *nodev1.StatusResponse) int {
		return cmp.Compare(b.GetOperation().GetOpenedUnixNano(), a.GetOperation().GetOpenedUnixNano())
	})
	return d
}
