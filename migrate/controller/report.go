package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Bounds of what nodes say.
const (
	maxHeld   = 10000
	maxText   = 256 // of a uid and a phase in a report
	maxDoubts = 64  // that are remembered
	maxOfNode = 16  // of one node, and one for all VMs of its own
)

// Report implements nodev1.StoreService: a node speaks for itself only.
func (i *Incarnations) Report(ctx context.Context, req *nodev1.ReportRequest) (*nodev1.StoreState, error) {
	if err := authorize(ctx, []string{req.GetNode()}); err != nil {
		return nil, err
	}
	if err := checkReport(req); err != nil {
		return nil, err
	}
	done, err := i.reserve(req.GetNode())
	if err != nil {
		return nil, err
	}
	defer done()
	if err := i.checkNames(ctx, req); err != nil {
		return nil, err
	}
	state, err := i.store.State(ctx)
	switch {
	case err != nil:
		return nil, err
	case transition.Retired(state, req.GetNode()): // its report is neither waited for nor believed
		return state, nil
	case !state.GetWaiting():
		return i.judge(ctx, state, req)
	}
	value, err := proto.Marshal(req)
	if err == nil {
		err = i.notes.Note(ctx, kindReport, reportKey(state, req.GetNode()), value)
	}
	if err != nil {
		return nil, fmt.Errorf("keep what node %s reports: %w", req.GetNode(), err)
	}
	state, err = i.change(ctx, func(now *nodev1.StoreState) (bool, error) {
		if now.GetIncarnation() != state.GetIncarnation() || !now.GetWaiting() ||
			slices.Contains(now.GetReported(), req.GetNode()) {
			return false, nil
		}
		now.Missing = slices.DeleteFunc(now.Missing, func(n string) bool { return n == req.GetNode() })
		now.Reported = union(now.Reported, []string{req.GetNode()})
		return true, nil
	})
	if err == nil {
		err = i.Maintain(ctx)
	}
	return state, err
}

// reserve refuses a report of a node of which one is being looked at: each costs a look at all records that it
// names. A node that sends many holds up only itself.
func (i *Incarnations) reserve(node string) (done func(), err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.reporting[node] {
		return nil, fmt.Errorf("report of node %s: an earlier one is being looked at: wait for its answer: %w", node,
			errdefs.ErrUnavailable)
	}
	i.reporting[node] = true
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.reporting, node)
	}, nil
}

func reportKey(state *nodev1.StoreState, node string) string {
	return fmt.Sprintf("%d/%s", state.GetIncarnation(), node)
}

// checkReport refuses what no node says of itself.
func checkReport(req *nodev1.ReportRequest) error {
	wrong := ""
	switch {
	case req.GetNode() == "" || len(req.GetNode()) > maxText:
		wrong = "node: a name is needed"
	case len(req.GetHeld()) > maxHeld:
		wrong = fmt.Sprintf("held: %d VMs, at most %d", len(req.GetHeld()), maxHeld)
	}
	for _, h := range req.GetHeld() {
		if n := max(len(h.GetUid()), len(h.GetPhase())); n > maxText {
			wrong = fmt.Sprintf("held: a name of %d bytes, at most %d", n, maxText)
		}
		if n := max(len(h.GetOperation()), len(h.GetDigest()), len(h.GetRepository()), len(h.GetVm().GetNamespace()),
			len(h.GetVm().GetId())); n > maxWord { // as records have them
			wrong = fmt.Sprintf("held: a text of %d bytes, at most %d", n, maxWord)
		}
		if h.GetUid() == "" {
			wrong = fmt.Sprintf("held: VM %s/%s has no uid", h.GetVm().GetNamespace(), h.GetVm().GetId())
		}
	}
	if wrong != "" {
		return fmt.Errorf("report of node %.64q: %s: %w", req.GetNode(), wrong, errdefs.ErrInvalidArgument)
	}
	return nil
}

// checkNames refuses VMs whose names no record can have. A record that a build before has made under such a name counts
// as any other.
func (i *Incarnations) checkNames(ctx context.Context, req *nodev1.ReportRequest) error {
	for _, h := range req.GetHeld() {
		err := transition.CheckVM(h.GetVm())
		if err == nil {
			continue
		}
		st, lerr := i.store.Load(ctx, h.GetVm(), transition.Asked{})
		if lerr != nil && !errdefs.IsInvalidArgument(lerr) { // for which the store has a key
			return fmt.Errorf("look for the record of a VM that node %s reports: %w", req.GetNode(), lerr)
		}
		if err := transition.CheckNamed(h.GetVm(), st.Record); err != nil {
			return err
		}
	}
	return nil
}

// Told is what a heartbeat of a node is answered: the store's incarnation, whether its records change, and whether
// it is asked to report. A node that was not waited for is waited for from then on.
func (i *Incarnations) Told(ctx context.Context, node string) (state *nodev1.StoreState, report bool, err error) {
	state, err = i.told.State(ctx)
	asked := func(d *nodev1.Doubt) bool { // whether it has the VM, or says so still
		return !d.GetRefuted() && (d.GetNode() == node || d.GetOwner() == node && !d.GetCredible())
	}
	if err == nil && !state.GetWaiting() && !transition.Retired(state, node) &&
		slices.ContainsFunc(state.GetDoubts(), asked) {
		return state, true, nil
	}
	if err != nil || !state.GetWaiting() || transition.Retired(state, node) || slices.Contains(state.GetReported(), node) {
		return state, false, err
	}
	state, err = i.change(ctx, func(now *nodev1.StoreState) (bool, error) {
		if now.GetIncarnation() != state.GetIncarnation() || !now.GetWaiting() ||
			slices.Contains(union(now.GetMissing(), now.GetReported()), node) {
			return false, nil
		}
		now.Missing = union(now.GetMissing(), []string{node})
		return true, nil
	})
	return state, err == nil && slices.Contains(state.GetMissing(), node), err
}

// reports are those that came under the store's incarnation.
func (i *Incarnations) reports(ctx context.Context, state *nodev1.StoreState) (all []*nodev1.ReportRequest, err error) {
	notes, err := i.notes.Notes(ctx, kindReport, "")
	if err != nil {
		return nil, err
	}
	for _, n := range notes {
		if !strings.HasPrefix(n.Key, reportKey(state, "")) {
			continue
		}
		req := new(nodev1.ReportRequest)
		if err := proto.Unmarshal(n.Value, req); err != nil {
			return nil, fmt.Errorf("decode report %s: %w: %w", n.Key, err, errdefs.ErrDataLoss)
		}
		all = append(all, req)
	}
	return all, nil
}
