package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/internal/retry"
)

// fakeAgent is a guest with an init that runs until it is killed.
type fakeAgent struct {
	agentv1.AgentService
	*faults
	ports fakePorts
	mu    sync.Mutex
	exits map[string]chan uint32
	boot  string
	said  []string // what it was asked of processes, in order
	oom   bool     // of every exit
	text  []byte   // what every process writes
	// What Processes lists in addition to init, and of processes that no Start has made.
	started, others []*agentv1.Process
	open            bool    // and does not end with it
	typed           []byte  // to any stdin
	times           []int64 // that it was told after a stop
	// The commands that the shim itself runs in the container, and how the n-th of them ends: with 0 at once, unless the
	// test sets another end. A negative status: not by itself.
	ran     []string
	answers func(n int, command string) int
	pod     fakeGuestPod
	held    atomic.Bool
}

// runs is a command of the shim's. One that the guest has is not run again.
func (a *fakeAgent) runs(r *agentv1.StartRequest) {
	var p specs.Process
	_ = json.Unmarshal(r.GetProcess(), &p)
	a.mu.Lock()
	if a.exits[r.GetId()] != nil {
		a.mu.Unlock()
		return
	}
	exit := make(chan uint32, 1)
	a.exits[r.GetId()] = exit
	a.ran = append(a.ran, strings.Join(p.Args, " "))
	n, answers := len(a.ran), a.answers
	a.mu.Unlock()
	status := 0
	if answers != nil {
		status = answers(n, strings.Join(p.Args, " "))
	}
	if status >= 0 {
		exit <- uint32(status)
	}
}

// commands are those that the shim has run so far.
func (a *fakeAgent) commands() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.ran)
}

// kept are those that the guest still knows.
func (a *fakeAgent) kept() (ids []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id := range a.exits {
		if strings.HasPrefix(id, "/") {
			ids = append(ids, id)
		}
	}
	return ids
}

func (a *fakeAgent) note(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.said = append(a.said, fmt.Sprintf(format, args...))
}

// heard answers what was asked of processes since the last time.
func (a *fakeAgent) heard() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	said := a.said
	a.said = nil
	return said
}

func newFakeAgent(f *faults) *fakeAgent {
	return &fakeAgent{faults: f, exits: map[string]chan uint32{}, boot: "boot-1",
		ports: fakePorts{programs: map[uint32]string{}, conns: map[string]*fakeConn{}}}
}

func (a *fakeAgent) Close() error { return nil }

func (a *fakeAgent) Hold(context.Context) error {
	if err := a.call("hold channel"); err != nil {
		return err
	}
	a.held.Store(true)
	return nil
}

func (a *fakeAgent) Release() { a.held.Store(false) }

func (a *fakeAgent) Info(context.Context, *agentv1.InfoRequest) (*agentv1.InfoResponse, error) {
	return &agentv1.InfoResponse{BootId: a.boot, UptimeMs: 1000}, a.call("info")
}
func (a *fakeAgent) Setup(context.Context, *agentv1.SetupRequest) (*agentv1.SetupResponse, error) {
	return &agentv1.SetupResponse{}, a.call("setup")
}
func (a *fakeAgent) ConfigureNetwork(context.Context,
	*agentv1.ConfigureNetworkRequest) (*agentv1.ConfigureNetworkResponse, error) {
	return &agentv1.ConfigureNetworkResponse{}, a.call("configure network")
}
func (a *fakeAgent) Restored(context.Context, *agentv1.RestoredRequest) (*agentv1.RestoredResponse, error) {
	r := &agentv1.RestoredResponse{BootId: a.boot, UptimeMs: 2000}
	a.mu.Lock()
	for id := range a.exits {
		r.Processes = append(r.Processes, &agentv1.Process{Id: id})
	}
	a.mu.Unlock()
	return r, a.call("restored")
}

// SetClock is not among what the guest was asked: it comes when it likes.
func (a *fakeAgent) SetClock(ctx context.Context, r *agentv1.SetClockRequest) (*agentv1.SetClockResponse, error) {
	a.mu.Lock()
	a.times = append(a.times, r.GetUnixNano())
	a.mu.Unlock()
	answered := make(chan error, 1)
	go func() { answered <- a.aside("set clock") }()
	select {
	case err := <-answered:
		return &agentv1.SetClockResponse{}, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// clock answers the times that it was told since the last time.
func (a *fakeAgent) clock() []int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	times := a.times
	a.times = nil
	return times
}

func (a *fakeAgent) Start(ctx context.Context, r *agentv1.StartRequest) (*agentv1.StartResponse, error) {
	a.note("start %q", r.GetId())
	if err := a.podCall(ctx, "start process"); err != nil {
		return nil, err
	}
	if strings.HasPrefix(r.GetId(), "/") {
		a.runs(r)
	}
	a.exit(r.GetId())
	return &agentv1.StartResponse{Pid: 2}, nil
}

func (a *fakeAgent) exit(id string) chan uint32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.exits[id] == nil {
		a.exits[id] = make(chan uint32, 1)
	}
	return a.exits[id]
}

func (a *fakeAgent) Wait(ctx context.Context, r *agentv1.WaitRequest) (*agentv1.WaitResponse, error) {
	ch := a.exit(r.GetId())
	select {
	case status := <-ch:
		select {
		case ch <- status: // for the next one who asks
		default: // killed again
		}
		return &agentv1.WaitResponse{ExitStatus: status, ExitedAtUnixNano: time.Now().UnixNano(), Oom: a.oom}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (a *fakeAgent) Read(ctx context.Context, r *agentv1.ReadRequest) (*agentv1.ReadResponse, error) {
	if c := a.ports.conn(r.GetId()); c != nil {
		return c.read(ctx, r)
	}
	a.mu.Lock()
	text, open := a.text, a.open
	a.mu.Unlock()
	if open && r.GetOffset() == uint64(len(text)) {
		retry.Sleep(ctx, 10*time.Millisecond)
		return &agentv1.ReadResponse{Offset: r.GetOffset()}, ctx.Err()
	}
	out, err := readOf(ctx, text, r)
	if out != nil {
		out.Eof = out.Eof && !open
	}
	return out, err
}

// readOf answers a Read of a process that has written text, and no more.
func readOf(ctx context.Context, text []byte, r *agentv1.ReadRequest) (*agentv1.ReadResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	from := int(r.GetOffset())
	to := min(from+(64<<10), len(text))
	return &agentv1.ReadResponse{Data: text[from:to], Offset: uint64(from), Eof: to == len(text)}, nil
}

// says changes what every process has written.
func (a *fakeAgent) says(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text, a.open = []byte(text), true
}

func (a *fakeAgent) Write(ctx context.Context, r *agentv1.WriteRequest) (*agentv1.WriteResponse, error) {
	if c := a.ports.conn(r.GetId()); c != nil {
		return c.write(ctx, r)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.typed = append(a.typed, r.GetData()...)
	return &agentv1.WriteResponse{Offset: r.GetOffset() + uint64(len(r.GetData()))}, nil
}

func (a *fakeAgent) CloseStdin(_ context.Context, r *agentv1.CloseStdinRequest) (*agentv1.CloseStdinResponse, error) {
	if c := a.ports.conn(r.GetId()); c != nil {
		return &agentv1.CloseStdinResponse{}, c.CloseWrite()
	}
	a.note("close %q at %d", r.GetId(), r.GetOffset())
	return &agentv1.CloseStdinResponse{}, nil
}

func (a *fakeAgent) Kill(ctx context.Context, r *agentv1.KillRequest) (*agentv1.KillResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	a.note("kill %q %d", r.GetId(), r.GetSignal())
	if r.GetSignal() == 28 { // SIGWINCH ends no process
		return &agentv1.KillResponse{}, nil
	}
	ids := []string{r.GetId()}
	if r.GetAll() && r.GetId() != "" {
		ids = append(ids, "") // all that the container has
	}
	for _, id := range ids {
		select {
		case a.exit(id) <- 128 + r.GetSignal():
		default:
		}
	}
	return &agentv1.KillResponse{}, nil
}

func (a *fakeAgent) Stats(context.Context, *agentv1.StatsRequest) (*agentv1.StatsResponse, error) {
	return &agentv1.StatsResponse{MemoryCurrent: 42}, nil
}
func (a *fakeAgent) Shutdown(context.Context, *agentv1.ShutdownRequest) (*agentv1.ShutdownResponse, error) {
	return &agentv1.ShutdownResponse{}, nil
}
func (a *fakeAgent) Processes(context.Context, *agentv1.ProcessesRequest) (*agentv1.ProcessesResponse, error) {
	all := []*agentv1.Process{{}}
	if a.pod.set { // whose init, and its containers', have names
		a.mu.Lock()
		all = nil
		for id := range a.exits {
			all = append(all, &agentv1.Process{Id: id})
		}
		a.mu.Unlock()
	}
	return &agentv1.ProcessesResponse{Processes: append(all, a.started...), Others: a.others}, a.call("processes")
}
func (a *fakeAgent) Remove(_ context.Context, r *agentv1.RemoveRequest) (*agentv1.RemoveResponse, error) {
	if strings.HasPrefix(r.GetId(), "forward-") {
		if !a.ports.drop(r.GetId()) {
			return nil, errdefs.ErrNotFound
		}
		return &agentv1.RemoveResponse{}, nil
	}
	a.note("remove %q", r.GetId())
	if err := a.aside("remove"); err != nil {
		return nil, err
	}
	if strings.HasPrefix(r.GetId(), "/") {
		a.mu.Lock()
		delete(a.exits, r.GetId())
		a.mu.Unlock()
	}
	return &agentv1.RemoveResponse{}, nil
}
func (a *fakeAgent) Resize(_ context.Context, r *agentv1.ResizeRequest) (*agentv1.ResizeResponse, error) {
	a.note("resize %q %d", r.GetId(), r.GetWidth())
	return &agentv1.ResizeResponse{}, nil
}
func (a *fakeAgent) Update(_ context.Context, r *agentv1.UpdateRequest) (*agentv1.UpdateResponse, error) {
	a.note("update %s", r.GetResources())
	return &agentv1.UpdateResponse{}, nil
}

// aside is call for what comes when it likes, and may not be the n-th.
func (f *faults) aside(name string) error {
	f.mu.Lock()
	hook := f.hooks[name]
	f.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook()
}
