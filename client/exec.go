package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/guesttool"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// ExecOptions say what runs in a VM.
type ExecOptions struct {
	Command  []string
	Env      []string // KEY=VALUE, over the VM's own; KEY: as in this process
	Dir      string   // empty: the VM's own
	User     string   // USER or USER:GROUP, names of the VM or numbers; empty: the VM's own
	Terminal bool
	Size     *TerminalSize // that it begins with; nil: it has none until Resize
}

// TerminalSize is in characters.
type TerminalSize = specs.Box

// lostStatus is the exit code of a process whose end is not known here: of 128 and more, no signal has this number.
const lostStatus = 255

// killedStatus is the exit code of a process that SIGKILL has ended, as the end of its VM does.
const killedStatus = 128 + int(syscall.SIGKILL)

// Exec runs a further command in a VM that runs. Its streams are those given; nil: they go nowhere. An error of the
// command is a *CommandError.
func (c *Client) Exec(ctx context.Context, vm *nodev1.VM, o ExecOptions, streams *Streams) (*Process, error) {
	if err := c.refusePod(ctx, vm, podExec); err != nil {
		return nil, err
	}
	t, err := c.Task(ctx, vm)
	if err != nil {
		return nil, err
	}
	process, err := c.process(ctx, t, o)
	if err != nil {
		return nil, err
	}
	ctx = within(ctx, vm)
	creator, input := cio.NullIO, (*closing)(nil)
	if streams != nil {
		creator, input = streamed(streams, o.Terminal)
	}
	p, err := t.Task.Exec(ctx, "exec-"+strings.ToLower(rand.Text()[:16]), process, creator)
	if err != nil {
		return nil, fmt.Errorf("exec in VM %s: %w", c.name(vm), err)
	}
	run := &Process{Terminal: o.Terminal, vm: vm, name: c.name(vm), task: p}
	waiting := context.WithoutCancel(ctx)
	if run.exit, err = p.Wait(waiting); err == nil {
		err = p.Start(ctx)
	}
	if err != nil {
		after, cancel := cleaning(ctx)
		defer cancel()
		_, _ = p.Delete(after, containerd.WithProcessKill)
		if gone := c.gone(ctx, vm); gone != nil {
			return nil, gone
		}
		return nil, fmt.Errorf("exec in VM %s: %w", c.name(vm), commandError(err))
	}
	if input != nil {
		go input.tell(func() { _ = run.CloseInput(waiting) })
	}
	run.ended = func(ctx context.Context, code int) error {
		after, cancel := cleaning(within(ctx, vm))
		defer cancel()
		_, _ = p.Delete(after)
		switch code {
		case lostStatus:
			return c.gone(ctx, vm)
		case killedStatus:
			return c.goneSoon(ctx, vm)
		}
		return nil
	}
	return run, nil
}

// streamed makes the streams of a process. The end of stdin is told by what is answered; nil: there is none.
func streamed(s *Streams, terminal bool) (cio.Creator, *closing) {
	opts, input := streamOpts(s, terminal)
	return cio.NewCreator(opts...), input
}

func streamOpts(s *Streams, terminal bool) ([]cio.Opt, *closing) {
	errs := s.Stderr
	opts := []cio.Opt{}
	if terminal { // all output comes on stdout
		errs, opts = nil, []cio.Opt{cio.WithTerminal}
	}
	if s.Stdin == nil {
		return append(opts, cio.WithStreams(nil, s.Stdout, errs)), nil
	}
	input := &closing{r: s.Stdin, closed: make(chan struct{})}
	return append(opts, cio.WithStreams(input, s.Stdout, errs)), input
}

// tell calls do at the end of the stream.
func (c *closing) tell(do func()) { <-c.closed; do() }

// process is the VM's own one with what o says in its place.
func (c *Client) process(ctx context.Context, t *Task, o ExecOptions) (*specs.Process, error) {
	spec, err := t.Container.Spec(within(ctx, t.VM))
	if err != nil {
		return nil, fmt.Errorf("read the spec of VM %s: %w", c.name(t.VM), unwrapped(err))
	}
	if spec.Process == nil {
		return nil, fmt.Errorf("VM %s runs the system of its disk, which no command reaches. "+
			"Use its network, or its serial console: %w", c.name(t.VM), errdefs.ErrNotImplemented)
	}
	p := *spec.Process
	p.Args, p.Terminal, p.ConsoleSize = o.Command, o.Terminal, nil
	if o.Terminal {
		p.ConsoleSize = o.Size
	}
	p.Env = environmentOver(p.Env, environment(o.Env))
	if o.Terminal && !slices.ContainsFunc(p.Env, func(kv string) bool { return strings.HasPrefix(kv, "TERM=") }) {
		p.Env = append(p.Env, "TERM=xterm")
	}
	if o.Dir != "" {
		p.Cwd = o.Dir
	}
	if o.User == "" {
		return &p, nil
	}
	id, err := c.identity(ctx, t.VM, o.User)
	if err != nil {
		return nil, err
	}
	p.User = specs.User{UID: id.UID, GID: id.GID, AdditionalGids: id.Groups}
	if id.UID != 0 && p.Capabilities != nil { // as docker does; what the bounding set has, setuid programs may get
		p.Capabilities = &specs.LinuxCapabilities{Bounding: p.Capabilities.Bounding}
	}
	return &p, nil
}

// environmentOver puts variables over those of the same name.
func environmentOver(own, over []string) []string {
	all := slices.Clone(own)
	for _, kv := range over {
		name, _, _ := strings.Cut(kv, "=")
		all = slices.DeleteFunc(all, func(old string) bool { return strings.HasPrefix(old, name+"=") })
		all = append(all, kv)
	}
	return all
}

// identity of a user, as the files of the VM say. Two numbers need no look at them.
func (c *Client) identity(ctx context.Context, vm *nodev1.VM, user string) (*guesttool.Identity, error) {
	if u, g, found := strings.Cut(user, ":"); found {
		uid, err1 := strconv.ParseUint(u, 10, 32)
		gid, err2 := strconv.ParseUint(g, 10, 32)
		if err1 == nil && err2 == nil {
			return &guesttool.Identity{UID: uint32(uid), GID: uint32(gid)}, nil
		}
	}
	id := new(guesttool.Identity)
	return id, c.ask(ctx, vm, id, guesttool.User, user)
}

// Attach connects streams to the process of a VM that runs. FailedPrecondition: its output goes to a log.
func (c *Client) Attach(ctx context.Context, vm *nodev1.VM, streams *Streams) (*Process, error) {
	if err := c.refusePod(ctx, vm, podAttach); err != nil {
		return nil, err
	}
	t, err := c.Task(ctx, vm)
	if err != nil {
		return nil, err
	}
	ctr, err := c.Containerd()
	if err != nil {
		return nil, err
	}
	ctx = within(ctx, vm)
	state, err := ctr.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: vm.GetId()})
	if err != nil {
		return nil, fmt.Errorf("ask containerd for the streams of VM %s: %w", c.name(vm), unwrapped(err))
	}
	out := state.GetProcess().GetStdout()
	if out == "" || strings.Contains(out, "://") {
		return nil, fmt.Errorf("VM %s runs detached: its output goes to a log. To follow it: godwit logs -f %s. "+
			"For a shell: godwit exec -it %s sh: %w", c.name(vm), c.name(vm), c.name(vm), errdefs.ErrFailedPrecondition)
	}
	p := &Process{Terminal: state.GetProcess().GetTerminal(), vm: vm, name: c.name(vm), left: make(chan struct{})}
	opts, input := streamOpts(streams, p.Terminal)
	if p.task, err = t.Container.Task(ctx, cio.NewAttach(opts...)); err != nil {
		return nil, fmt.Errorf("attach to VM %s: %w", c.name(vm), unwrapped(err))
	}
	if p.exit, err = p.task.Wait(context.WithoutCancel(ctx)); err != nil {
		return nil, fmt.Errorf("wait for VM %s: %w", c.name(vm), unwrapped(err))
	}
	if input != nil {
		go input.tell(func() { _ = p.CloseInput(context.WithoutCancel(ctx)) })
	}
	p.ended = func(ctx context.Context, code int) error {
		if code != lostStatus {
			return nil
		}
		return c.gone(ctx, vm)
	}
	return p, nil
}

// Left reports whether Leave was called.
func (p *Process) Left() bool {
	select {
	case <-p.left:
		return true
	default:
		return false
	}
}

// Leave ends Wait of an attached process, which goes on. A second call does nothing; one from another goroutine may be.
func (p *Process) Leave() {
	if p.left != nil {
		p.leaving.Do(func() { close(p.left) })
	}
}
