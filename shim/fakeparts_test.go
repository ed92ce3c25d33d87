package shim

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/network"
	"godwit.dev/godwit/network/dhcp"
	vmproc "godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/vmm"
)

// recorder is containerd's side of the events.
type recorder struct {
	mu     sync.Mutex
	topics []string
	exits  map[string]uint32 // status of each process that has ended
}

func (r *recorder) Publish(_ context.Context, topic string, event any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.topics = append(r.topics, topic)
	if e, ok := event.(*events.TaskExit); ok {
		if r.exits == nil {
			r.exits = map[string]uint32{}
		}
		r.exits[e.GetID()] = e.GetExitStatus()
	}
	return nil
}

// exit answers what was told of the end of a process.
func (r *recorder) exit(id string) (status uint32, told bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	status, told = r.exits[id]
	return status, told
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.topics...)
}

// fakeMachine is a real process that does nothing, under a VMM's interface.
type fakeMachine struct {
	vmm.Machine
	*faults
	id      vmproc.ID
	cfg     vmm.Config
	done    chan struct{}
	once    sync.Once
	mu      sync.Mutex
	runs    bool
	deaf    bool   // to SIGKILL
	dies    func() // what SIGKILL finds
	nics    *fakeNICs
	off     bool   // by the guest
	unsure  bool   // or by a signal
	reason  string // of the end
	presses int    // of the power button
	events  chan vmm.Event
	hot     fakeHotDisks
}

func (m *fakeMachine) PowerButton(context.Context) error {
	m.mu.Lock()
	m.presses++
	m.mu.Unlock()
	return m.call("press power button")
}

func newFakeMachine(f *faults, id vmproc.ID, cfg vmm.Config) *fakeMachine {
	return &fakeMachine{faults: f, id: id, cfg: cfg, done: make(chan struct{}), events: make(chan vmm.Event, 4),
		reason: "VMM killed by a signal", nics: &fakeNICs{has: cfg.NICs}}
}

func (m *fakeMachine) set(runs bool) { m.mu.Lock(); m.runs = runs; m.mu.Unlock() }

func (m *fakeMachine) running() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.runs }

func (m *fakeMachine) Resume(context.Context) error {
	select {
	case <-m.done:
		return fmt.Errorf("the VMM ended: %w: %w", vmm.ErrNotResumed, errdefs.ErrAborted)
	default:
	}
	err := m.call("resume")
	if err == nil {
		m.set(true)
	}
	return err
}

// Detach leaves the process to the next one who adopts it.
func (m *fakeMachine) Detach() error { return m.call("detach") }

func (m *fakeMachine) Pause(context.Context) error {
	err := m.call("pause")
	if err == nil {
		m.set(false)
	}
	return err
}

func (m *fakeMachine) Kill(ctx context.Context) error {
	m.mu.Lock()
	deaf, dies := m.deaf, m.dies
	m.mu.Unlock()
	if dies != nil {
		dies()
	}
	if deaf {
		<-ctx.Done()
		return ctx.Err()
	}
	m.set(false)
	err := m.id.Kill(ctx)
	m.once.Do(func() { close(m.done) })
	return err
}

func (m *fakeMachine) SaveState(_ context.Context, f *os.File) error {
	if err := m.call("save state"); err != nil {
		return err
	}
	_, err := f.WriteString("state")
	return err
}

func (m *fakeMachine) LoadState(ctx context.Context, _ *os.File) error {
	if m.cfg.Mapped != nil {
		if err := m.cfg.Mapped(ctx); err != nil {
			return err
		}
	}
	return m.call("load state")
}

func (m *fakeMachine) Done() <-chan struct{}    { return m.done }
func (m *fakeMachine) Events() <-chan vmm.Event { return m.events }
func (m *fakeMachine) Exit() vmm.Exit {
	m.mu.Lock()
	defer m.mu.Unlock()
	return vmm.Exit{Status: 137, Clean: m.off, Unsure: m.off && m.unsure, Reason: m.reason, At: time.Now()}
}

// reset is what the guest does whose VMM ends with it.
func (m *fakeMachine) reset() {
	m.mu.Lock()
	m.reason, m.runs = "reset by the guest", false
	m.mu.Unlock()
	_ = m.id.Kill(context.Background())
	m.once.Do(func() { close(m.done) })
}

// powerOff is what the guest does.
func (m *fakeMachine) powerOff() {
	m.mu.Lock()
	m.off, m.runs = true, false
	m.mu.Unlock()
	_ = m.id.Kill(context.Background())
	m.once.Do(func() { close(m.done) })
}

func (m *fakeMachine) pressed() int { m.mu.Lock(); defer m.mu.Unlock(); return m.presses }

func (m *fakeMachine) Process() vmm.Process {
	p := vmm.Process{PID: m.id.PID, StartTime: m.id.StartTime, Boot: m.id.Boot, Dir: m.cfg.Dir, NICs: m.nics.list()}
	if m.cfg.Track == vmm.TrackPages {
		p.Userfault = 9
	}
	return p
}

type fakeNetwork struct {
	mu sync.Mutex // of attached, detached, left, forGuest
	*faults
	links    []network.Link
	attached bool
	detached string // the namespace that was given back last
	left     string // the one that was left silent last
	forGuest string // the one that a VM's interfaces are to come to
	up       bool
	serves   chan served
	told     atomic.Int32 // how often it was announced
}

func (n *fakeNetwork) ForGuest(netns string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forGuest = netns
	return n.call("prepare namespace")
}

func (n *fakeNetwork) Read(context.Context, string) ([]network.Link, error) {
	return n.links, n.call("read network")
}

func (n *fakeNetwork) FindGateways(_ context.Context, _ string, links []network.Link) ([]network.Link, error) {
	return links, n.call("find gateways")
}

func (n *fakeNetwork) Serve(ctx context.Context, link network.Link, s *dhcp.Server, leased func(dhcp.Lease)) error {
	n.serves <- served{link, s, leased}
	<-ctx.Done()
	return ctx.Err()
}

// served is what the fake was told to serve.
type served struct {
	network.Link
	*dhcp.Server
	leased func(dhcp.Lease)
}

func (n *fakeNetwork) Attach(context.Context, string, network.Owner, []network.Link) (Attachment, error) {
	if err := n.call("attach network"); err != nil {
		return nil, err
	}
	n.attached = true
	return n, nil
}

func (n *fakeNetwork) Open(context.Context, string, []network.Link) (Attachment, error) {
	return n, n.call("open network")
}
func (n *fakeNetwork) Detach(_ context.Context, netns string, _ []network.Link) error {
	n.mu.Lock() // a shim that counts as dead may end the VM at the same time as its successor
	defer n.mu.Unlock()
	n.attached, n.detached = false, netns
	return nil
}
func (n *fakeNetwork) Leave(_ context.Context, netns string, _ []network.Link) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.attached, n.left = false, netns
	return nil
}
func (n *fakeNetwork) Taps() []*os.File               { return []*os.File{nil} }
func (n *fakeNetwork) Tap(int) (*os.File, error)      { return nil, n.call("open tap") }
func (n *fakeNetwork) Announce(context.Context) error { n.told.Add(1); return nil }
func (n *fakeNetwork) Close() error                   { return nil }
func (n *fakeNetwork) Up(context.Context) error {
	err := n.call("link up")
	n.up = err == nil
	return err
}
func (n *fakeNetwork) Mute(context.Context) error { return n.call("link mute") }
func (n *fakeNetwork) Down(context.Context) error {
	err := n.call("link down")
	n.up = err != nil
	return err
}

// fakeRecords is one record, with the transitions that a shim asks for.
type fakeRecords struct {
	nodev1.RecordsService
	*faults
	mu    sync.Mutex
	rec   *nodev1.Record
	phase nodev1.Phase // of the last operation
	lose  string       // the call that is obeyed and not answered

	refuseOwn bool
	forced    string // by the last operation
}

func newFakeRecords(f *faults) *fakeRecords {
	return &fakeRecords{faults: f, rec: &nodev1.Record{Vm: &nodev1.VM{Namespace: "ns", Id: "vm"}, Uid: "uid",
		Owner: &nodev1.Owner{}}}
}

// sleep is the commit of a hibernate.
func (r *fakeRecords) sleep(digest string) {
	r.rec.Owner, r.rec.Repository = &nodev1.Owner{Digest: digest}, "r"
	r.rec.Generation++
}

func (r *fakeRecords) do(name string, change func() error) (*nodev1.Record, error) {
	if err := r.call(name); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := change(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if r.lose == name {
		return nil, fmt.Errorf("%s: the answer is lost: %w", name, errdefs.ErrUnavailable)
	}
	return proto.CloneOf(r.rec), nil
}

func (r *fakeRecords) Get(context.Context, *nodev1.GetRequest) (*nodev1.Record, error) {
	return r.do("get", func() error { return nil })
}

func (r *fakeRecords) own(o *nodev1.Owner) error { r.rec.Owner = o; r.rec.Generation++; return nil }

func (r *fakeRecords) Ensure(context.Context, *nodev1.EnsureRequest) (*nodev1.Record, error) {
	return r.do("ensure", func() error { return nil })
}

func (r *fakeRecords) Own(_ context.Context, q *nodev1.OwnRequest) (*nodev1.Record, error) {
	return r.do("own", func() error {
		if r.refuseOwn || r.rec.GetGeneration() != q.GetGeneration() {
			return errdefs.ErrFailedPrecondition
		}
		return r.own(&nodev1.Owner{Node: q.GetNode()})
	})
}

func (r *fakeRecords) Disown(_ context.Context, q *nodev1.DisownRequest) (*nodev1.Record, error) {
	return r.do("end ownership", func() error {
		if r.rec.GetGeneration() != q.GetGeneration() {
			return errdefs.ErrFailedPrecondition
		}
		return r.own(&nodev1.Owner{})
	})
}

func (r *fakeRecords) Open(_ context.Context, q *nodev1.OpenRequest) (*nodev1.Record, error) {
	return r.do("open operation", func() error {
		r.rec.Operation, r.forced = q.GetOperation(), q.GetForceDigest()
		return nil
	})
}

func (r *fakeRecords) Advance(_ context.Context, q *nodev1.AdvanceRequest) (*nodev1.Record, error) {
	return r.do("advance", func() error {
		if r.rec.GetOperation().GetId() != q.GetOperation() || r.rec.GetOperation().GetGeneration() != q.GetGeneration() {
			return errdefs.ErrFailedPrecondition
		}
		committed := r.rec.GetOperation().GetPhase() == nodev1.Phase_PHASE_COMMITTED
		if committed != (q.GetPhase() == nodev1.Phase_PHASE_REVERTING) {
			return errdefs.ErrFailedPrecondition
		}
		r.phase = q.GetPhase()
		r.rec.Operation.Phase = r.phase
		if r.phase == nodev1.Phase_PHASE_REVERTING {
			return r.own(&nodev1.Owner{Digest: r.rec.GetOperation().GetDigest()})
		}
		return nil
	})
}

func (r *fakeRecords) Commit(_ context.Context, q *nodev1.CommitRequest) (*nodev1.Record, error) {
	return r.do("commit", func() error {
		if op := r.rec.GetOperation(); op.GetId() == q.GetOperation() && op.GetPhase() == nodev1.Phase_PHASE_COMMITTED &&
			proto.Equal(r.rec.GetOwner(), q.GetOwner()) { // it was made before
			return nil
		}
		if r.rec.GetOperation().GetId() != q.GetOperation() || r.rec.GetGeneration() != q.GetGeneration() {
			return errdefs.ErrFailedPrecondition
		}
		r.rec.Operation.Phase = nodev1.Phase_PHASE_COMMITTED
		return r.own(q.GetOwner())
	})
}

func (r *fakeRecords) Finish(_ context.Context, q *nodev1.FinishRequest) (*nodev1.Record, error) {
	return r.do("finish", func() error { r.rec.Operation, r.phase = nil, q.GetPhase(); return nil })
}
