//go:build integration

package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/migrate/channel"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/tasks"
)

const pagesPort = "7555"

// side is a node as the controller of a move reaches it: its shims, its containerd, and
// the port that streams of pages come to.
type side struct {
	*harness.Node
	cfg  *config.Config
	task *containerd.Client
}

// taskEnv makes the test binary a client of containerd in the namespaces of a node.
const taskEnv = "GODWIT_TEST_TASK"

// taskOrder is what it does there.
type taskOrder struct {
	Config string
	Order  engine.Restore
	Undo   bool
}

func TestMain(m *testing.M) {
	text := os.Getenv(taskEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	if err := doTask(context.Background(), []byte(text)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func doTask(ctx context.Context, text []byte) error {
	var o taskOrder
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	cfg, err := config.Load(o.Config)
	if err != nil {
		return err
	}
	c, err := tasks.New(cfg, o.Config, func(context.Context, string, string) (*spec.Spec, error) {
		sp := new(spec.Spec)
		return sp, json.Unmarshal(o.Order.Intent.Stream.GetSpec(), sp)
	})
	if err != nil {
		return err
	}
	defer c.Close()
	name := &nodev1.VM{Namespace: "default", Id: vm}
	if o.Undo {
		return c.Undo(ctx, name, o.Order)
	}
	return c.Create(ctx, name, o.Order)
}

func newSide(t *testing.T, n *harness.Node) *side {
	t.Helper()
	cfg, err := config.Load(n.Config)
	if err != nil {
		t.Fatal(err)
	}
	s := &side{Node: n, cfg: cfg}
	var inner net.Listener
	if err := n.Enter(func() error { inner, err = net.Listen("tcp4", s.address()); return err }); err != nil {
		t.Fatal(err)
	}
	l := channel.Listen(inner, cfg.LivePagesSocket)
	t.Cleanup(func() { l.Close() })
	if s.task, err = containerd.New(n.Socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.task.Close() })
	return s
}

func (s *side) address() string { return net.JoinHostPort(s.Address, pagesPort) }

// machine runs one call on the VM's shim.
func machine[Q, R any](ctx context.Context, s *side, call func(machinev1.MachineService, context.Context, Q) (R, error),
	req Q) (R, error) {
	var none R
	conn, err := net.Dial("unix", s.cfg.MachineSocket("default", vm))
	if err != nil {
		return none, err
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	r, err := call(machinev1.NewMachineClient(client), ctx, req)
	return r, errgrpc.ToNative(err)
}

// tasks runs an order in the node's namespaces: CNI works there.
func (s *side) tasks(ctx context.Context, o taskOrder) error {
	o.Config = s.Config
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := s.Command(ctx, self)
	cmd.Env = append(cmd.Env, taskEnv+"="+string(data))
	var text strings.Builder
	cmd.Stderr = &text
	if err := s.Enter(cmd.Start); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("%w: %s", err, text.String())
	}
	return nil
}

func (s *side) start(ctx context.Context) error {
	ctx = namespaces.WithNamespace(ctx, "default")
	task, err := s.load(ctx)
	if err != nil {
		return err
	}
	return task.Start(ctx)
}

// liveMove is one live move, ordered by ttrpc and containerd alone.
type liveMove struct {
	t        *testing.T
	from, to *side
	records  *record.Client
	ref      *machinev1.Ref
	offer    *machinev1.OfferResponse
	order    engine.Restore
	incoming *machinev1.IncomingResponse
	sent     *machinev1.SendResponse
}

func newLiveMove(t *testing.T, records *record.Client, from, to *side, id string) *liveMove {
	t.Helper()
	j := &liveMove{t: t, from: from, to: to, records: records}
	rec, err := records.Get(t.Context(), &nodev1.GetRequest{Vm: j.vm()})
	j.must("get record", err)
	j.ref = &machinev1.Ref{Operation: id, Attempt: 1, Generation: rec.GetGeneration()}
	_, err = records.Open(t.Context(), &nodev1.OpenRequest{Vm: j.vm(), Operation: &nodev1.Operation{
		Id: id, Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 1, Source: from.Name, Destination: to.Name,
		Generation: rec.GetGeneration(),
	}})
	j.must("open operation", err)
	return j
}

func (j *liveMove) vm() *nodev1.VM { return &nodev1.VM{Namespace: "default", Id: vm} }

func (j *liveMove) must(what string, err error) {
	j.t.Helper()
	if err != nil {
		j.t.Fatalf("%s: %v", what, err)
	}
}

func (j *liveMove) advance(phase nodev1.Phase, change func(*nodev1.AdvanceRequest)) {
	j.t.Helper()
	r := &nodev1.AdvanceRequest{Vm: j.vm(), Operation: j.ref.GetOperation(), Attempt: 1, Generation: j.ref.GetGeneration(),
		Phase: phase}
	if change != nil {
		change(r)
	}
	_, err := j.records.Advance(j.t.Context(), r)
	j.must("advance to "+phase.String(), err)
}

func (j *liveMove) finish(phase nodev1.Phase) {
	j.t.Helper()
	_, err := j.records.Finish(j.t.Context(), &nodev1.FinishRequest{
		Vm: j.vm(), Operation: j.ref.GetOperation(), Attempt: 1, Generation: j.ref.GetGeneration(), Phase: phase,
	})
	j.must("finish", err)
}

// prepare makes the destination.
func (j *liveMove) prepare() {
	j.t.Helper()
	ctx := j.t.Context()
	j.advance(nodev1.Phase_PHASE_PREPARING, nil)
	var err error
	j.offer, err = machine(ctx, j.from, machinev1.MachineService.Offer, &machinev1.OfferRequest{Ref: j.ref})
	j.must("offer", err)
	if len(j.offer.GetObstacles()) > 0 {
		j.t.Fatalf("obstacles %q", j.offer.GetObstacles())
	}
	j.order = engine.Restore{Intent: record.Intent{Operation: j.ref.GetOperation(), Attempt: 1, Stream: &machinev1.Stream{
		Spec: j.offer.GetSpec(), Facts: j.offer.GetFacts(), Certificate: j.offer.GetCertificate(),
		Generation: j.ref.GetGeneration(),
	}}}
	j.must("create task", j.to.tasks(ctx, taskOrder{Order: j.order}))
	j.incoming, err = machine(ctx, j.to, machinev1.MachineService.Incoming, &machinev1.IncomingRequest{Ref: j.ref})
	j.must("incoming", err)
}

func (j *liveMove) send(change func(*machinev1.SendRequest)) error {
	r := &machinev1.SendRequest{
		Ref: j.ref, Address: j.to.address(), Channel: j.incoming.GetChannel(), Certificate: j.incoming.GetCertificate(),
		DowntimeMs: 100, Execs: true,
	}
	if change != nil {
		change(r)
	}
	var err error
	j.sent, err = machine(j.t.Context(), j.from, machinev1.MachineService.Send, r)
	return err
}

// vote has the source stop for good, as far as it is asked.
func (j *liveMove) vote() {
	j.t.Helper()
	v, err := machine(j.t.Context(), j.from, machinev1.MachineService.Vote, &machinev1.VoteRequest{Ref: j.ref})
	j.must("vote", err)
	receipt, err := json.Marshal(record.Receipt{
		Operation: j.ref.GetOperation(), Attempt: 1, Generation: j.ref.GetGeneration(), Digest: v.GetDigest(), Stopped: true,
	})
	j.must("receipt", err)
	j.advance(nodev1.Phase_PHASE_SWITCHING, func(r *nodev1.AdvanceRequest) {
		r.Digest, r.Receipt = v.GetDigest(), string(receipt)
	})
}

func (j *liveMove) commit() {
	j.t.Helper()
	_, err := j.records.Commit(j.t.Context(), &nodev1.CommitRequest{
		Vm: j.vm(), Operation: j.ref.GetOperation(), Attempt: 1, Generation: j.ref.GetGeneration(),
		Owner: &nodev1.Owner{Node: j.to.Name},
	})
	j.must("commit", err)
}

func (j *liveMove) release() {
	j.t.Helper()
	_, err := machine(j.t.Context(), j.from, machinev1.MachineService.Release, &machinev1.ReleaseRequest{Ref: j.ref,
		Digest: j.sent.GetDigest()})
	j.must("release", err)
	j.advance(nodev1.Phase_PHASE_CLEANING, nil)
	j.finish(nodev1.Phase_PHASE_SUCCEEDED)
}

func (j *liveMove) abort() {
	j.t.Helper()
	_, err := machine(j.t.Context(), j.from, machinev1.MachineService.Abort,
		&machinev1.AbortRequest{Ref: j.ref, Reason: "test"})
	if err != nil && !errdefs.IsFailedPrecondition(err) {
		j.t.Fatal(err)
	}
	j.must("undo destination", j.to.tasks(j.t.Context(), taskOrder{Order: j.order, Undo: true}))
}

func socket(n *harness.Node) string { return filepath.Join(n.Dir, "run", "godwitd.sock") }
