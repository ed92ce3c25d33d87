package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Node is one host of the cluster.
type Node struct {
	Name    string // a, b, ..
	Address string // on the wire
	Dir     string
	Config  string // path of godwit's configuration
	Socket  string // of containerd

	index      int
	harness    *Harness
	holder     *nodeInit
	Containerd *Process // nil: not started
	Godwitd    *Process
}

func (h *Harness) startNodes(ctx context.Context) error {
	for i := range h.opts.Nodes {
		name := string(rune('a' + i))
		dir := filepath.Join(h.Dir, name)
		if err := os.MkdirAll(filepath.Join(dir, "ram"), 0o755); err != nil {
			return err
		}
		hold, err := startNodeInit(h.cgroup(name))
		if err != nil {
			return fmt.Errorf("make node %s: %w", name, err)
		}
		n := &Node{
			Name: name, Address: nodeAddress(i), Dir: dir, index: i, harness: h, holder: hold,
			Config: filepath.Join(dir, "config.toml"), Socket: filepath.Join(dir, "c.sock"),
		}
		if h.opts.Installed {
			n.Config, n.Socket = hostConfig, hostSocket
		}
		h.nodes = append(h.nodes, n)
		h.onClose(hold.close)
		if err := h.join(ctx, n); err != nil {
			return fmt.Errorf("join node %s: %w", name, err)
		}
		if err := n.writeConfig(); err != nil {
			return err
		}
		if err := n.mountState(ctx); err != nil {
			return err
		}
		for _, step := range []func(context.Context) error{n.shareMounts, n.installLater} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		if err := n.StartContainerd(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Root is the node's file system, as this process reaches it.
func (n *Node) Root() string { return n.inside("/") }

// StateDir is the node's state_dir, as this process reaches it.
func (n *Node) StateDir() string { return n.inside(filepath.Join(n.Dir, "lib")) }

// mountState makes the node's state_dir a file system of its own, if the options ask for that.
func (n *Node) mountState(ctx context.Context) error {
	size := n.harness.opts.State
	if size == "" {
		return nil
	}
	dir := filepath.Join(n.Dir, "lib")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	_, err := n.Run(ctx, "mount", "-t", "tmpfs", "-o", "mode=0755,size="+size, "state", dir)
	return err
}

// shareMounts makes the mounts of a node of Kubernetes shared, as systemd does: volumes with propagation ask for that.
func (n *Node) shareMounts(ctx context.Context) error {
	if !n.harness.opts.CRI {
		return nil
	}
	_, err := n.Run(ctx, "mount", "--make-rshared", "/")
	return err
}

// PID of the node's first process; /proc/PID/root is the node's file system.
func (n *Node) PID() int { return n.holder.pid() }

// Command makes a command that Start, Output and the like run inside the node; call them
// through Enter.
func (n *Node) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	if !strings.Contains(name, "/") {
		name = n.harness.lookPath(name)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = n.Dir
	cmd.Env = n.env()
	// A command may leave children that hold its output open, such as a shim.
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// Enter calls f on a thread inside the node.
func (n *Node) Enter(f func() error) error { return n.holder.enter(f) }

// Run runs a program inside the node and answers its output. The error carries what it
// wrote to stderr.
func (n *Node) Run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := n.Command(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := n.Enter(cmd.Start); err != nil {
		return "", fmt.Errorf("start %s on node %s: %w", name, n.Name, err)
	}
	if err := cmd.Wait(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return stdout.String(), &RunError{Node: n.Name, Args: append([]string{name}, args...), Stderr: stderr.String(),
			Err: err}
	}
	return stdout.String(), nil
}

// RunError is a program that did not end well.
type RunError struct {
	Node   string
	Args   []string
	Stderr string
	Err    error // *exec.ExitError has the code
}

func (e *RunError) Error() string {
	return fmt.Sprintf("%s on node %s: %v: %s", strings.Join(e.Args, " "), e.Node, e.Err, strings.TrimSpace(e.Stderr))
}

func (e *RunError) Unwrap() error { return e.Err }

// Code is the exit code; -1 if a signal ended the program.
func (e *RunError) Code() int {
	var exit *exec.ExitError
	if errors.As(e.Err, &exit) {
		return exit.ExitCode()
	}
	return -1
}

// RunCtr runs ctr on the node's containerd.
func (n *Node) RunCtr(ctx context.Context, args ...string) (string, error) {
	return n.Run(ctx, "ctr", n.CtrArgs(args...)...)
}

// CtrArgs puts before the arguments of ctr what it needs to reach the node's containerd.
func (n *Node) CtrArgs(args ...string) []string {
	all := []string{"--address", n.Socket}
	if Nested() { // many at once take longer than its ten seconds to start
		all = append(all, "--connect-timeout", "2m")
	}
	return append(all, args...)
}

// RunGodwit runs the CLI with the node's configuration.
func (n *Node) RunGodwit(ctx context.Context, args ...string) (string, error) {
	program := "godwit"
	if n.harness.opts.Installed { // its place is one of the node alone
		program = "/usr/local/bin/godwit"
	}
	return n.Run(ctx, program, append([]string{"--config", n.Config}, args...)...)
}

// Ctr is RunCtr that fails the test on an error.
func (n *Node) Ctr(t testing.TB, args ...string) string {
	t.Helper()
	out, err := n.RunCtr(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Godwit is RunGodwit that fails the test on an error.
func (n *Node) Godwit(t testing.TB, args ...string) string {
	t.Helper()
	out, err := n.RunGodwit(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// env of everything that runs in the node; a shim inherits it from containerd.
func (n *Node) env() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "PATH=") && !strings.HasPrefix(e, holderEnv+"=") {
			env = append(env, e)
		}
	}
	return append(env, "PATH="+n.harness.path(), "GODWIT_CONFIG="+n.Config, "GODWIT_NODE="+n.Name,
		"CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1", "DOCKER_CONFIG="+filepath.Join(n.Dir, "docker"))
}

func (h *Harness) path() string {
	bin := filepath.Join(h.root, "bin")
	tools := filepath.Join(bin, "tools")
	own := tools
	if h.opts.Release == LongRun {
		own = filepath.Join(tools, "containerd23")
	}
	programs := bin
	switch {
	case h.opts.Installed:
		programs = "/usr/local/bin"
	case h.opts.Programs != "":
		programs = h.opts.Programs
	}
	return strings.Join([]string{programs, own, tools, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin",
		"/sbin", "/bin"}, ":")
}

// lookPath finds a program as a node would; an unknown one is left for exec to refuse.
func (h *Harness) lookPath(name string) string {
	for _, dir := range filepath.SplitList(h.path()) {
		if p := filepath.Join(dir, name); unix.Access(p, unix.X_OK) == nil {
			return p
		}
	}
	return "/not found in PATH/" + name
}
