package scale

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// program is one that is measured.
type program struct {
	name string
	cmd  *exec.Cmd
	log  *os.File
	over chan error
	pid  int // of the program; the command may be what slows its disk
}

// slowSync has each sync of a program's files take as long.
type slowSync time.Duration

func (s slowSync) wrap(args []string) []string {
	if s == 0 {
		return args
	}
	us := time.Duration(s).Microseconds()
	return append([]string{"strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=fsync,fdatasync", "-e", "signal=none",
		"-o", "/dev/null",
		"-e", fmt.Sprintf("inject=fsync,fdatasync:delay_enter=%d", us)}, args...)
}

// launch a program on the core of what is measured; it is there once it answers at the address.
func launch(ctx context.Context, dir, name, address string, slow slowSync, args ...string) (*program, error) {
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	args = slow.wrap(append([]string{"taskset", "-c", controllerCore}, args...))
	p := &program{name: name, log: log, cmd: exec.CommandContext(context.WithoutCancel(ctx), args[0], args[1:]...)}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), log.Close())
	}
	over := make(chan error, 1)
	go func() { over <- p.cmd.Wait() }()
	p.over = over
	for deadline := time.Now().Add(startBound); ; time.Sleep(pollInterval) {
		if len(over) > 0 {
			said, _ := os.ReadFile(log.Name())
			return nil, errors.Join(fmt.Errorf("%s ends: %w: %s", name, <-over, said), log.Close())
		}
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			p.pid = p.cmd.Process.Pid
			if slow != 0 {
				p.pid, err = childOf(p.pid)
			}
			return p, errors.Join(err, conn.Close())
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return nil, errors.Join(fmt.Errorf("%s does not answer at %s: %w", name, address, err), p.stop())
		}
	}
}

const startBound = 30 * time.Second

// childOf answers the one child that a program has.
func childOf(pid int) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

func (p *program) stop() error {
	if p.pid != 0 && p.pid != p.cmd.Process.Pid {
		_ = unix.Kill(p.pid, unix.SIGTERM)
	}
	_ = p.cmd.Process.Signal(unix.SIGTERM)
	timer := time.AfterFunc(startBound, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	_ = errors.Join(<-p.over) // it was told to end
	return p.log.Close()
}

// ticks is USER_HZ.
const ticks = 100

// cpu is what a program has used, in seconds.
func (p *program) cpu() (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	user, err := strconv.ParseUint(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseUint(fields[12], 10, 64)
	return float64(user+system) / ticks, err
}

// forgetPeak has peak begin anew.
func (p *program) forgetPeak() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.pid), []byte("5"), 0)
}

// peak is the most memory that a program has had, in MiB.
func (p *program) peak() (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, errors.New("no VmHWM")
}

// freeAddress of this host.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
