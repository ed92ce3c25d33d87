//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/internal/failpoint"
)

// death is a death of what has no points, in one row of the crash table.
type death struct {
	name string
	row  row
	do   func(*moveRun, context.Context) (heal func() error, err error)
	may  []end
}

// row of the crash table: a moment that a move is brought to.
type row struct {
	name      string
	e         *edge
	bandwidth uint64 // pages go for as long as this makes them
}

// narrow makes a stream of pages last for seconds.
const narrow = 4 << 20

var (
	paging    = row{name: "while pages go", bandwidth: narrow}
	packing   = row{"while packs are pushed", &edge{point{source, "journal.SENDING", 1}, failpoint.After}, 0}
	pulling   = row{"before the destination", &edge{point{destination, "Peer.Prepare", 1}, failpoint.Before}, 0}
	loading   = row{"all sent, READY not written", &edge{point{destination, "journal.READY", 1}, failpoint.Before}, 0}
	paused    = row{"paused, before the vote", &edge{point{source, "Peer.Vote", 1}, failpoint.Before}, 0}
	voted     = row{"voted", &edge{point{source, "Machine.Vote", 1}, failpoint.After}, 0}
	committed = row{"committed", &edge{point{keeper, "record.COMMITTED", 1}, failpoint.After}, 0}
	owned     = row{"OWN written", &edge{point{destination, "journal.OWN", 1}, failpoint.After}, 0}
	runsThere = row{"it runs", &edge{point{keeper, "record.CLEANING", 1}, failpoint.After}, 0}
	reverting = row{"reverting", &edge{point{keeper, "record.REVERTING", 1}, failpoint.After}, 0}
)

// near are rows around a call of a node's godwitd to containerd, which hands it to the shim: before it, in the middle
// of it, and after it.
func near(at role, call, inner string) []row {
	return []row{
		{name: "before " + call, e: &edge{point{at, "Tasks." + call, 1}, failpoint.Before}},
		{name: "in " + call, e: &edge{point{at, "Task." + inner, 1}, failpoint.Before}},
		{name: "after " + call, e: &edge{point{at, "Tasks." + call, 1}, failpoint.After}},
	}
}

// containerdDeaths adds the deaths of containerd: where a destination's task is made and
// started, and where a source's is released.
func containerdDeaths(add func(r row, what string, do func(*moveRun, context.Context) (func() error, error),
	may ...end)) {
	for _, r := range near(destination, "Create", "Create") {
		add(r, "destination containerd", containerdOf(destination), stays, moved)
	}
	for _, r := range near(destination, "Start", "Start") {
		add(r, "destination containerd", containerdOf(destination), moved)
		add(r, "source containerd", containerdOf(source), moved)
	}
	for _, r := range near(source, "Delete", "Delete") {
		add(r, "source containerd", containerdOf(source), moved)
	}
	add(paused, "source containerd", containerdOf(source), moved)
	add(runsThere, "destination containerd", containerdOf(destination), moved)
}

// deaths are the cells of the crash table that no point of a program stands for.
func deaths(s script) (all []death) {
	add := func(r row, what string, do func(*moveRun, context.Context) (func() error, error), may ...end) {
		all = append(all, death{r.name + ", " + what, r, do, may})
	}
	after := []row{voted, committed, owned, runsThere}
	switch s.name {
	case "live":
		add(paging, "source VMM", vmmOf(source), gone)
		add(paging, "destination VMM", vmmOf(destination), stays)
		add(paging, "source worker", workerOf(source), stays)
		add(paging, "destination worker", workerOf(destination), stays)
		add(paging, "link of both", cut(source, destination), stays)
		add(paging, "link of controller and source", cut(keeper, source), stays, moved)
		add(paging, "link of controller and destination", cut(keeper, destination), stays, moved)
		add(loading, "source VMM", vmmOf(source), moved)
		add(paused, "destination VMM", vmmOf(destination), stays)
		add(paused, "link of controller and source", cut(keeper, source), stays, moved)
		add(committed, "link of controller and destination", cut(keeper, destination), moved)
		add(runsThere, "link of controller and source", cut(keeper, source), moved)
	case "cold":
		add(packing, "source VMM", vmmOf(source), gone)
		add(packing, "source worker", workerOf(source), stays)
		add(packing, "registry", registry, stays, moved)
		add(pulling, "registry", registry, stays, moved)
		add(pulling, "source VMM", vmmOf(source), moved)
		add(committed, "registry", registry, moved)
	case "reverted":
		add(reverting, "source VMM", vmmOf(source), gone)
		add(reverting, "link of controller and source", cut(keeper, source), stays)
		add(reverting, "source containerd", containerdOf(source), stays)
		add(reverting, "destination containerd", containerdOf(destination), stays)
		return all
	default:
		return nil
	}
	containerdDeaths(add)
	add(paused, "source VMM", vmmOf(source), moved)
	for _, r := range after {
		add(r, "source VMM", vmmOf(source), moved)
	}
	if s.name == "live" {
		add(voted, "destination VMM", vmmOf(destination), stays)
		add(committed, "destination VMM", vmmOf(destination), stays)
	}
	add(owned, "destination VMM", vmmOf(destination), stays, gone) // its shim knows that it let nothing run
	add(runsThere, "destination VMM", vmmOf(destination), gone)
	return all
}

// injure brings a move to the row, does it, and judges.
func (w *moveWorld) injure(t *testing.T, s script, h death) error {
	ctx := t.Context()
	from, err := w.awake(ctx)
	if err != nil {
		return fmt.Errorf("before: %w", err)
	}
	j := w.act(s, from)
	j.bandwidth = h.row.bandwidth
	defer j.release()
	if err := j.begin(ctx, h.row.e); err != nil {
		return fmt.Errorf("reach the row: %w", err)
	}
	if h.row.e != nil {
		_, err = j.holds[len(j.holds)-1].reached(ctx, j.checkOpen)
	} else {
		err = j.paging(ctx)
	}
	if err != nil {
		return fmt.Errorf("reach the row: %w", err)
	}
	at, err := j.look(ctx, h.row.at(), 0)
	if err != nil {
		return err
	}
	at.who = victim(h.name)
	released, err := j.released(ctx, h)
	if err != nil {
		return err
	}
	heal, err := h.do(j, ctx)
	if heal != nil {
		defer heal()
	}
	if err != nil {
		return err
	}
	j.release()
	return errors.Join(j.judge(t, at, h.may), released())
}

// released watches how containerd is told of the end at a source whose VMM dies while the VM goes
// on elsewhere: as one that has moved.
func (j *moveRun) released(ctx context.Context, h death) (func() error, error) {
	if !strings.HasSuffix(h.name, "source VMM") || !slices.Equal(h.may, []end{moved}) {
		return func() error { return nil }, nil
	}
	client, err := containerd.New(j.from.Socket)
	if err != nil {
		return nil, err
	}
	ctx = namespaces.WithNamespace(ctx, "default")
	seen := &recorder{task: j.vm}
	if err := seen.listen(ctx, client); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return func() error {
		defer client.Close()
		if err := seen.wait(ctx, []string{"exit"}); err != nil {
			return err
		}
		if _, codes := seen.take(); !slices.Equal(codes, []uint32{0}) {
			return fmt.Errorf("the source's task ended with %v, want 0, once", codes)
		}
		return nil
	}, nil
}

func (r row) at() role {
	if r.e == nil {
		return source
	}
	return r.e.at
}

// paging waits until pages go: both workers and the VMM that will have them are there.
func (j *moveRun) paging(ctx context.Context) error {
	return harness.Poll(ctx, runBound, func(context.Context) error {
		_, err := workerPID(j.from)
		if err == nil {
			_, err = workerPID(j.to)
		}
		if err == nil {
			_, err = hostPID(j.to, note(j.to, j.vm).Process.PID)
		}
		return err
	})
}

func vmmOf(r role) func(*moveRun, context.Context) (func() error, error) {
	return func(j *moveRun, ctx context.Context) (func() error, error) {
		pid, err := hostPID(j.at(r), note(j.at(r), j.vm).Process.PID)
		if err != nil {
			return nil, err
		}
		return nil, kill(ctx, pid)
	}
}

// containerdOf kills a node's containerd, which is started again at once.
func containerdOf(r role) func(*moveRun, context.Context) (func() error, error) {
	return func(j *moveRun, ctx context.Context) (func() error, error) {
		if err := j.at(r).Containerd.Kill(); err != nil {
			return nil, err
		}
		j.release()
		return nil, j.at(r).StartContainerd(ctx)
	}
}

// workerOf may have to let the program go on before it starts one.
func workerOf(r role) func(*moveRun, context.Context) (func() error, error) {
	return func(j *moveRun, ctx context.Context) (func() error, error) {
		j.release()
		var pid int
		err := harness.Poll(ctx, stepBound, func(context.Context) (err error) { pid, err = workerPID(j.at(r)); return err })
		if err != nil {
			return nil, err
		}
		return nil, kill(ctx, pid)
	}
}

// cutFor is longer than a node is asked in vain, and than a link that is dead is believed.
const cutFor = 25 * time.Second

// cut ends a link for a while.
func cut(a, b role) func(*moveRun, context.Context) (func() error, error) {
	return func(j *moveRun, ctx context.Context) (func() error, error) {
		heal, err := j.at(a).Cut(ctx, j.at(b))
		if err != nil {
			return heal, err
		}
		j.release()
		select {
		case <-ctx.Done():
			return heal, ctx.Err()
		case <-time.After(cutFor):
		}
		return nil, heal()
	}
}

// registry is killed, and comes back when it was missed.
func registry(j *moveRun, ctx context.Context) (func() error, error) {
	if err := j.Registry.Kill(); err != nil {
		return nil, err
	}
	j.release()
	select {
	case <-ctx.Done():
	case <-time.After(5 * time.Second):
	}
	return nil, errors.Join(ctx.Err(), j.ServeRegistry(ctx))
}
