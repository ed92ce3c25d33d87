package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/internal/filelock"
)

// startTime bounds how long a daemon may take until its socket answers. A variable for the tests.
var startTime = time.Minute

const (
	startPoll = 50 * time.Millisecond // between looks whether it answers
	dialTime  = 5 * time.Second       // a socket that takes longer says nothing
)

// daemonStart is a daemon that does not run.
type daemonStart struct {
	name    string // of the program and of the unit
	socket  string
	args    []string
	without bool // systemd: its unit would start another configuration
}

// startContainerd is for a host on which no containerd runs: one that listens elsewhere is somebody's.
func (h *host) startContainerd() *repair {
	socket := h.cfg.Containerd.Address
	if socket != config.Default().Containerd.Address || !silent(socket) || h.runs("containerd") {
		return nil
	}
	return h.start(daemonStart{name: "containerd", socket: socket})
}

// startDaemon is for a node whose godwitd has proven to be stopped: no process listens, and none has its lock.
func (h *host) startDaemon() *repair {
	d := daemonStart{name: "godwitd", socket: h.cfg.DaemonSocket()}
	if !silent(d.socket) || locked(filepath.Join(h.cfg.RunDir, "godwitd.lock")) {
		return nil
	}
	if path := config.Path(h.configPath); path != config.Path("") || os.Getenv("GODWIT_CONFIG") != "" {
		d.args, d.without = []string{"--config", path}, true
	}
	return h.start(d)
}

func (h *host) start(d daemonStart) *repair {
	_, err := os.Stat(h.systemd)
	if err == nil && d.without {
		return nil
	}
	if err == nil {
		return &repair{does: "start " + d.name, hand: "systemctl enable --now " + d.name,
			do: func(ctx context.Context) error {
				if err := h.run(ctx, "systemctl", "start", d.name+".service"); err != nil {
					return err
				}
				return answers(ctx, d.socket, nil)
			}}
	}
	log := filepath.Join(h.logs, d.name+".log")
	hand := strings.Join(append([]string{d.name}, d.args...), " ") + " >>" + log + " 2>&1 &"
	return &repair{does: "start " + d.name + ", whose log is " + log + "; nothing starts it again when this host boots",
		hand: hand, do: func(ctx context.Context) error { return d.detached(ctx, log) }}
}

// detached starts the program so that it goes on after this one, and waits until it answers.
func (d daemonStart) detached(ctx context.Context, log string) error {
	program, err := exec.LookPath(d.name)
	if err != nil {
		return fmt.Errorf("%w (docs/how-to/install.md says where it comes from)", err)
	}
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(program, d.args...) // not of ctx: it goes on
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := answers(ctx, d.socket, ended); err != nil {
		return fmt.Errorf("%w (its log: %s)", err, log)
	}
	return nil
}

// answers waits until somebody listens. ended tells that the program has ended before that.
func answers(ctx context.Context, socket string, ended <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			return c.Close()
		}
		select {
		case end := <-ended:
			return fmt.Errorf("it has ended at once: %v", end)
		case <-ctx.Done():
			return fmt.Errorf("it does not answer at %s: %w", socket, err)
		case <-time.After(startPoll):
		}
	}
}

// silent: it is proven that no process listens there. Any other error, such as a time that has run out, proves nothing.
func silent(socket string) bool {
	c, err := net.DialTimeout("unix", socket, dialTime)
	if err == nil {
		_ = c.Close()
		return false
	}
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED)
}

// locked: somebody has the lock, or that is not known.
func locked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	defer f.Close()
	return filelock.Lock(f, unix.LOCK_SH|unix.LOCK_NB) != nil
}

// runs: a process of that name is there, or that is not known.
func (h *host) runs(name string) bool {
	all, err := os.ReadDir(h.proc)
	if err != nil || len(all) == 0 {
		return true
	}
	for _, process := range all {
		if strings.Trim(process.Name(), "0123456789") != "" {
			continue // it is no pid
		}
		comm, err := os.ReadFile(filepath.Join(h.proc, process.Name(), "comm"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil || strings.TrimSpace(string(comm)) == name {
			return true
		}
	}
	return false
}
