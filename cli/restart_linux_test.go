package cli

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Migrate follows its move over a restart of the daemon that drives it, to its end. An interrupt while there is none
// says that the move goes on.
func TestMigrateFollowsOverRestarts(t *testing.T) {
	f := newFleet(t)
	const order = "migrate web --to b --operation m1"
	c := runs(t, f.socket, order)
	c.log.until(t, "check", 1)
	gone, watch := runs(t, f.socket, order), runs(t, f.socket, "watch m1")
	gone.log.until(t, "check", 1)
	watch.out.until(t, "MigrationStarted", 1)
	f.stop()
	for _, each := range []*command{c, gone, watch} {
		each.log.until(t, "waiting for godwitd", 1)
	}
	gone.interrupt()
	if code := <-gone.code; code != 130 || !strings.Contains(gone.log.String(), "Operation m1 goes on in godwitd") {
		t.Errorf("exit code %d: %s", code, &gone.log)
	}
	f.start()
	f.says(0, "operation m1: abort", "abort m1 --reason later")
	if code := <-c.code; code != 5 || !strings.Contains(c.log.String(), "The VM stays at node a as before") ||
		strings.Count(c.log.String(), "waiting for godwitd") != 1 {
		t.Errorf("exit code %d: %s", code, &c.log)
	}
	if code := <-watch.code; code != 0 || strings.Count(watch.out.String(), "Aborted") != 1 ||
		strings.Count(watch.out.String(), "MigrationStarted") != 1 {
		t.Errorf("watch: exit code %d: %s, %s", code, &watch.out, &watch.log)
	}
}

// A move's --timeout counts from its begin, also where the daemon that drives it is another one by
// then: the question that is under way ends with it.
func TestTimeoutOverARestart(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	c := runs(t, f.socket, "migrate web --to b --timeout 5s --operation m1")
	c.log.until(t, "check", 1)
	f.stop()
	c.log.until(t, "waiting for godwitd", 1)
	f.start()
	if code := <-c.code; code != 6 || !strings.Contains(c.log.String(), "The VM stays at node a as before") {
		t.Errorf("exit code %d: %s", code, &c.log)
	}
}

// restarted is a daemon that is stopped while it is asked the second time, and has done all when it
// is asked the third time.
type restarted struct {
	nodev1.NodeService
	stop    func()
	asked   atomic.Int32
	ordered atomic.Bool // what asks before an order looks for the VM
}

var itsVM = &nodev1.VM{Namespace: "n", Id: "v"}

func (r *restarted) step(ctx context.Context) (over bool, err error) {
	if r.asked.Add(1) == 2 {
		go r.stop()
		<-ctx.Done()
		return false, ctx.Err()
	}
	return r.asked.Load() > 2, nil
}

func (r *restarted) status(ctx context.Context) (*nodev1.StatusResponse, error) {
	over, err := r.step(ctx)
	op := &nodev1.Operation{Id: "o", Kind: nodev1.Kind_KIND_HIBERNATE, Vm: itsVM, Digest: "sha256:1"}
	if over {
		op.Phase = nodev1.Phase_PHASE_SUCCEEDED
	}
	return &nodev1.StatusResponse{Operation: op, Settled: over}, err
}

func (r *restarted) Hibernate(ctx context.Context, _ *nodev1.HibernateRequest) (*nodev1.StatusResponse, error) {
	r.ordered.Store(true)
	return r.status(ctx)
}

func (r *restarted) Status(ctx context.Context, _ *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	return r.status(ctx)
}

func (r *restarted) Delete(ctx context.Context, req *nodev1.DeleteRequest) (*nodev1.Record, error) {
	r.ordered.Store(true)
	_, err := r.step(ctx)
	return &nodev1.Record{Vm: itsVM, Deletion: req.GetDeletion()}, err
}

func (r *restarted) Recorded(ctx context.Context, _ *nodev1.GetRequest) (*nodev1.Record, error) {
	var err error
	if r.ordered.Load() {
		_, err = r.step(ctx)
	}
	return &nodev1.Record{Vm: itsVM, Owner: &nodev1.Owner{Digest: "sha256:1"}}, err
}

// drained is its service of moves.
type drained struct {
	nodev1.MovesService
	*restarted
}

func (r drained) Drain(ctx context.Context, _ *nodev1.DrainRequest) (*nodev1.DrainResponse, error) {
	over, err := r.step(ctx)
	if over || err != nil {
		return &nodev1.DrainResponse{}, err
	}
	op := &nodev1.Operation{Id: "m", Kind: nodev1.Kind_KIND_MIGRATE, Phase: nodev1.Phase_PHASE_SUCCEEDED, Vm: itsVM,
		Source: "a"}
	return &nodev1.DrainResponse{Moves: []*nodev1.StatusResponse{{Operation: op, Settled: true}}}, nil
}

// Whatever follows what a daemon does, goes on when that is started again.
func TestVerbsFollowOverRestarts(t *testing.T) {
	for line, says := range map[string]string{"hibernate n/v": "n/v sleeps as sha256:1",
		"rm --final-snapshot n/v": "n/v removed", "drain a": ""} {
		socket, r := place(t), &restarted{}
		start := func() (stop func()) {
			srv, err := controller.NewServer()
			if err != nil {
				t.Fatal(err)
			}
			nodev1.RegisterNodeService(srv, r)
			nodev1.RegisterMovesService(srv, drained{restarted: r})
			return serve(t, srv, socket)
		}
		stopped := make(chan struct{})
		stop := start()
		r.stop = func() { stop(); close(stopped) }
		c := runs(t, socket, line)
		<-stopped
		c.log.until(t, "waiting for godwitd", 1)
		t.Cleanup(start())
		if code := <-c.code; code != 0 || !strings.Contains(c.out.String(), says) {
			t.Errorf("%s: exit code %d: %s, %s", line, code, &c.out, &c.log)
		}
	}
}
