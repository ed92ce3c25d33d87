package agentd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/stage"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// process is one process of a container, from Start to Remove.
type process struct {
	id     string
	box    *container
	spec   *specs.Process
	stdin  *input
	stdout *output
	stderr *output
	done   chan struct{} // closed when it has ended

	spawned *spawned // what its pid was given to; nil before it was started

	mu     sync.Mutex
	kills  uint64 // for memory, in the cgroup, before it began
	pid    int
	status uint32
	at     time.Time
	oom    bool
	tty    *os.File
	files  []*os.File    // our ends of the stdio
	size   *unix.Winsize // asked for before there was a terminal
}

func newProcess(id string, box *container, spec *specs.Process, poke func()) *process {
	return &process{id: id, box: box, spec: spec, stdin: newInput(), stdout: newOutput(poke), stderr: newOutput(poke),
		done: make(chan struct{})}
}

// become makes the process of a stage that waits another container's.
func (p *process) become(c *container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.id, p.box = c.id, c
}

// container whose process it is.
func (p *process) container() *container {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.box
}

func parseProcess(data []byte) (*specs.Process, error) {
	p := new(specs.Process)
	if err := json.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("read process: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return p, nil
}

// ended records the exit. kills is what the cgroup has counted by now.
func (p *process) ended(status uint32, at time.Time, kills uint64) {
	p.mu.Lock()
	p.status, p.at = status, at
	p.oom = status == 128+uint32(unix.SIGKILL) && kills > p.kills
	p.mu.Unlock()
	close(p.done)
	p.stdin.stop()
}

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// endedAt is when it has ended.
func (p *process) endedAt() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at
}

func (p *process) exit() *agentv1.WaitResponse {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &agentv1.WaitResponse{
		ExitStatus: p.status, ExitedAtUnixNano: p.at.UnixNano(), Oom: p.oom,
		StdoutEnd: p.stdout.settle(), StderrEnd: p.stderr.settle(), Settled: true,
	}
}

func (p *process) info() *agentv1.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &agentv1.Process{
		Id: p.id, Pid: uint32(p.pid), Exited: p.exited(), ExitStatus: p.status, Terminal: p.spec.Terminal,
		StdinOffset: p.stdin.offset(), StdoutOffset: p.stdout.acknowledged(), StderrOffset: p.stderr.acknowledged(),
	}
}

// connect starts carrying the streams.
func (p *process) connect(s *streams) {
	if s.stdin == nil {
		p.stdin.stop()
	} else {
		go p.stdin.pump(s.stdin, false)
		p.files = append(p.files, s.stdin)
	}
	for i, out := range []*output{p.stdout, p.stderr} {
		if s.output[i] == nil {
			out.end()
			continue
		}
		out.carry(s.output[i], false)
		p.files = append(p.files, s.output[i])
	}
}

// forget ends the streams: they are not read any more. A process that still writes gets SIGPIPE.
func (p *process) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.files {
		f.Close()
	}
	p.stdout.discard()
	p.stderr.discard()
	p.stdin.stop()
}

// connectTerminal starts carrying a terminal, whose master is fd.
func (p *process) connectTerminal(fd int) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		return errors.Join(fmt.Errorf("use terminal: %w", err), unix.Close(fd))
	}
	tty := os.NewFile(uintptr(fd), "tty")
	p.mu.Lock()
	p.tty = tty
	p.files = append(p.files, tty)
	size := p.size
	p.mu.Unlock()
	p.stderr.end()
	go p.stdin.pump(tty, true)
	p.stdout.carry(tty, true)
	if size != nil {
		return p.resize(*size)
	}
	return nil
}

// resize sets the terminal's size, or keeps it until there is one.
func (p *process) resize(size unix.Winsize) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tty == nil {
		p.size = &size
		return nil
	}
	raw, err := p.tty.SyscallConn()
	if err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	var ioctl error
	if err := raw.Control(func(fd uintptr) { ioctl = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &size) }); err != nil {
		return nil // the terminal has ended
	}
	if ioctl != nil {
		return fmt.Errorf("resize terminal: %w", ioctl)
	}
	return nil
}

// handshake leads a child from Process to the moment before exec. beforeExec is called
// then. Afterwards the child is the container's process.
func (p *process) handshake(pipe *stage.Pipe, proc *stage.Process, join []int, u *users, s *streams,
	beforeExec func() error) error {
	var fds []int
	if s != nil {
		fds = s.childFDs()
	}
	if err := pipe.SendProcess(proc, u.with(append(fds, join...))); err != nil {
		return err
	}
	for gone := false; ; {
		event, err := pipe.Next()
		if err != nil {
			return err
		}
		switch event {
		case stage.Console:
			for _, fd := range pipe.TakeFDs() {
				if err := p.connectTerminal(fd); err != nil {
					return err
				}
			}
		case stage.Exec:
			if err := beforeExec(); err != nil {
				return err
			}
			if err := pipe.SendGo(); err != nil {
				return err
			}
			gone = true
		case stage.Done:
			if !gone {
				return fmt.Errorf("start process: it was killed before exec: %w", errdefs.ErrUnavailable)
			}
			return nil
		default:
			return fmt.Errorf("start process: unexpected %q: %w", event, io.ErrUnexpectedEOF)
		}
	}
}
