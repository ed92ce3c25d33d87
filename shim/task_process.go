package shim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/stdio"
)

// killed is the status of a process that ended with its VM.
const killed = 137

// retryWait is the pause after a call of the guest that failed.
const retryWait = 200 * time.Millisecond

// process is the task's init, whose id is empty, or an exec. vm.mu guards its fields.
type process struct {
	task     *Task
	id       string
	guest    string // its id in the guest, where none is used twice
	stdio    stdio.URIs
	shown    stdio.URIs // what State names in place of stdio, for clients that attach later; zero: stdio
	config   []byte     // JSON of specs.Process
	pump     *stdio.Pump
	starting chan struct{} // not nil while a Start is under way; closed at its end
	started  bool
	exited   bool
	left     bool // with its VM, for another node
	came     bool // with its VM, from another node: no client here waits for it
	noStdin  bool // CloseIO came; perhaps before there was anything to close
	status   uint32
	exitedAt time.Time
	width    uint32 // of the terminal, where it was set before the start
	height   uint32
	done     chan struct{} // closed when exit status and output are out

	sizing sync.Mutex // orders the sizes that the guest is told
}

func (t *Task) newProcess(id string, streams stdio.URIs, config []byte) *process {
	guest := id
	if id == "" {
		guest = t.guest
	}
	return &process{task: t, id: id, guest: guest, stdio: streams, config: config, done: make(chan struct{})}
}

// runs reports whether containerd knows p as a process that runs. vm.mu is held.
func (p *process) runs() bool { return p.started && !p.exited }

// run starts p in the guest and lets its stdio flow. then is called in the moment in
// which p is a process that runs, with vm.mu held.
func (t *Task) run(ctx context.Context, p *process, st *stdio.Streams, from client.Offsets, then func()) error {
	vm := t.vm
	t.resize(ctx, p) // its first look at a terminal shows the right size
	stdin, stdout, stderr := st.Present()
	_, err := vm.guest().Start(ctx, &agentv1.StartRequest{
		Id: p.guest, Process: p.config, Stdin: stdin, Stdout: stdout, Stderr: stderr, Container: t.container(),
	})
	if err != nil {
		return err
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if p.exited { // with its VM, which was faster than the answer
		return fmt.Errorf("the VM has ended: %w", errdefs.ErrFailedPrecondition)
	}
	p.started, p.pump = true, stdio.NewPump(p.guest, st, from)
	if p.noStdin {
		st.CloseStdin()
	}
	then()
	return nil
}

// traffic is everything that asks the guest of its own accord: pumps and waits. It
// stands still during a capture.
type traffic struct {
	cancel   context.CancelFunc
	ctx      context.Context
	watchers sync.WaitGroup
	forgetting
}

// flows reports whether it does: the VM runs, and does not stand still before stopTraffic. The VM's lock is held.
func (t *traffic) flows() bool { return t.ctx != nil && t.ctx.Err() == nil }

// join answers a context for calls of the guest, which ends with the traffic. The VM does not stand still before leave.
// False: nothing flows. The VM's lock is held, and is not for leave.
func (t *traffic) join() (ctx context.Context, leave func(), ok bool) {
	if !t.flows() {
		return nil, nil, false
	}
	t.watchers.Add(1)
	return t.ctx, t.watchers.Done, true
}

// startTraffic starts the traffic of all live processes; what flowed already starts anew.
func (vm *VM) startTraffic() {
	vm.stopTraffic()
	ctx, cancel := context.WithCancel(vm.life)
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.isHeld() { // an operation was faster
		cancel()
		return
	}
	vm.traffic.cancel, vm.traffic.ctx = cancel, ctx
	for _, p := range vm.processes() {
		if p.runs() {
			p.task.startTrafficOf(p)
		}
	}
	forgetAsTraffic(vm)
	j := vm.journal.Load()
	if j.Spec.HasAgent() {
		vm.traffic.watchers.Go(func() { vm.clock.keep(ctx) })
	}
	if j.Spec.Pod != nil {
		vm.traffic.watchers.Go(func() { vm.pod.keepFresh(ctx) })
		vm.traffic.watchers.Go(func() { vm.pod.forwardPorts(ctx) })
	}
	if j.Unplugged {
		vm.traffic.watchers.Go(func() { vm.nic.keep(ctx) })
	}
	if len(j.Notices) > 0 {
		vm.traffic.watchers.Go(func() { vm.notices.run(ctx) })
	}
}

// startTrafficOf joins p to the traffic; vm.mu is held.
func (t *Task) startTrafficOf(p *process) {
	vm := t.vm
	ctx, agent := vm.traffic.ctx, vm.agent
	p.pump.Start(ctx, agent)
	vm.traffic.watchers.Go(func() { t.watch(ctx, agent, p) })
}

// stopTraffic stops the traffic; it returns when nothing of ours asks the guest any more.
func (vm *VM) stopTraffic() {
	vm.mu.Lock()
	all := vm.processes()
	if vm.traffic.cancel != nil {
		vm.traffic.cancel() // under the lock: who joins after it sees it
	}
	vm.mu.Unlock()
	for _, p := range all {
		if p.pump != nil {
			p.pump.Stop()
		}
	}
	vm.traffic.watchers.Wait()
}

// processes are those of all tasks, each task's init after its execs, the owner's last; vm.mu is held.
func (vm *VM) processes() (all []*process) {
	for _, t := range vm.tasks {
		if t.member != nil {
			all = append(all, t.all()...)
		}
	}
	return append(all, vm.owner.all()...)
}

// execs are those of all tasks; vm.mu is held.
func (vm *VM) execs() []*process {
	return slices.DeleteFunc(vm.processes(), func(p *process) bool { return p.id == "" })
}

// watch waits for the end of p in the guest.
func (t *Task) watch(ctx context.Context, agent agentv1.AgentService, p *process) {
	for ctx.Err() == nil {
		r, err := agent.Wait(ctx, &agentv1.WaitRequest{Id: p.guest})
		if err != nil {
			retry.Sleep(ctx, retryWait)
			continue
		}
		if r.GetOom() {
			t.publishOOM()
		}
		p.pump.End(r) // before the caller that waits for this goroutine asks whether the guest has reported
		// Not in this goroutine: still may be waiting for it.
		go t.ended(p, r)
		return
	}
}

// publishOOM says once that the container has met its limit: the kernel takes all of its
// processes, and each of them tells.
func (t *Task) publishOOM() {
	vm := t.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if !t.oom {
		t.oom = true
		vm.events.Send(&events.TaskOOM{ContainerID: t.id})
	}
}

// ended handles the end of one process that the guest has reported.
func (t *Task) ended(p *process, r *agentv1.WaitResponse) {
	vm := t.vm
	status, at := r.GetExitStatus(), time.Unix(0, r.GetExitedAtUnixNano())
	p.pump.WaitDrained(vm.life)
	switch {
	case p.id != "":
		t.publishExit(p, status, at)
	case t.member != nil:
		t.member.finish(status, at)
	default:
		t.finish(status, at)
	}
}

// publishExit tells the world, once.
func (t *Task) publishExit(p *process, status uint32, at time.Time) {
	vm := t.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	t.exit(p, status, at)
}

// exit is publishExit for a caller that holds vm.mu.
func (t *Task) exit(p *process, status uint32, at time.Time) {
	vm := t.vm
	if p.exited {
		return
	}
	p.exited, p.status, p.exitedAt = true, status, at
	id := p.id
	if id == "" {
		id = t.id
	}
	if p.started || p.id == "" {
		vm.events.Send(&events.TaskExit{
			ContainerID: t.id, ID: id, Pid: t.pid(), ExitStatus: status, ExitedAt: protobuf.ToTimestamp(at),
		})
	}
	close(p.done)
}
