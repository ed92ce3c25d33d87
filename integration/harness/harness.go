// Package harness runs several nodes on one host: each has its own network, mount and process namespaces, its own
// containerd and, if asked, its own godwitd. One L2 joins them, with a real OCI registry on it. Tests call New, the
// demo calls Start.
//
// Nothing stays when the harness ends: a node's processes die with the process that made it, and its mounts and links
// with the node.
package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Options of Start. The zero value is one node with containerd and nothing else.
type Options struct {
	Nodes    int      // default 1
	Registry Registry // default: none
	Server   string   // the registry's program; default: registry
	Godwitd  bool     // start godwitd on every node; the first one is the controller
	Etcd     bool     // keep the records in an etcd on the wire; all nodes are controllers
	Images   bool     // import the images of package images on the first node
	// Programs is a directory with programs of godwit, and guest/ with kernel and initramfs,
	// that take the place of those in the repository's bin.
	Programs string
	// Config is appended to every node's config.toml.
	Config func(n *Node) string
	RAM    string // every node's ram_size; default 4GiB
	// State is the size of a tmpfs that is every node's state_dir, as mount(8) takes it;
	// empty: a directory of the host.
	State string
	CRI   bool // containerd serves Kubernetes too
	// Installed leaves godwit to be installed on the nodes later. They have containerd where any host has it.
	Installed bool
	Debug     bool // containerd serves its profiles on debug.sock in the node's directory
	// Containerd is appended to every containerd's config.toml.
	Containerd string
	Release    Release                          // of containerd; default: what GODWIT_CONTAINERD says, else Newest
	Log        func(format string, args ...any) // default: nowhere
}

// Release of containerd, with its ctr.
type Release string

// The releases that are built into bin/tools.
const (
	Newest  Release = "2.4.2"
	LongRun Release = "2.3.7" // the one that is supported for years
)

// Releases are all of them.
var Releases = []Release{LongRun, Newest}

func (r Release) pick() (Release, error) {
	if r == "" {
		r = Release(os.Getenv("GODWIT_CONTAINERD"))
	}
	if r == "" {
		r = Newest
	}
	if !slices.Contains(Releases, r) {
		return "", fmt.Errorf("containerd %s is not one of %v", r, Releases)
	}
	return r, nil
}

// Harness is a set of running nodes.
type Harness struct {
	Dir  string // short, absolute; everything lies in it
	Door *Door  // in front of the registry; nil without one

	Registry *Process // which the door leads to; nil without one
	Etcd     *Process // nil without one

	opts   Options
	root   string // of the repository
	nodes  []*Node
	wire   *nodeInit
	plug   func() error // opens the registry's port
	unplug func() error
	undo   []func() error
	once   sync.Once
	err    error
}

// Start makes the nodes. On an error everything is taken back.
func Start(ctx context.Context, opts Options) (_ *Harness, err error) {
	if opts.Nodes == 0 {
		opts.Nodes = 1
	}
	if opts.Log == nil {
		opts.Log = func(string, ...any) {}
	}
	root, err := Root()
	if err != nil {
		return nil, err
	}
	if opts.Release, err = opts.Release.pick(); err != nil {
		return nil, err
	}
	dir, err := workDir()
	if err != nil {
		return nil, err
	}
	h := &Harness{Dir: dir, opts: opts, root: root}
	h.onClose(func() error { return os.RemoveAll(dir) })
	defer func() {
		if err != nil {
			h.Keep("start")
			err = errors.Join(err, h.Logs(), h.Close())
		}
	}()
	for _, step := range []func(context.Context) error{h.startWire, h.startRegistry, h.startEtcd, h.startNodes,
		h.startDaemons, h.importImages} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// New is Start for a test: it fails the test on an error, ends with it, and prints the
// daemons' logs if the test failed.
func New(t testing.TB, opts Options) *Harness {
	t.Helper()
	if opts.Log == nil {
		opts.Log = t.Logf
	}
	h, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatalf("start harness: %v", err)
	}
	stop := h.closeOnSignal()
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			h.Keep(t.Name())
			t.Log(h.Logs())
		}
		if err := h.Close(); err != nil {
			t.Errorf("close harness: %v", err)
		}
	})
	return h
}

// Node answers a node by number, from 0.
func (h *Harness) Node(i int) *Node { return h.nodes[i] }

// Nodes answers all nodes.
func (h *Harness) Nodes() []*Node { return h.nodes }

// Close ends everything, the last started first. It is safe to call twice.
func (h *Harness) Close() error {
	h.once.Do(func() {
		var errs []error
		for i := len(h.undo) - 1; i >= 0; i-- {
			errs = append(errs, h.undo[i]())
		}
		h.err = errors.Join(errs...)
	})
	return h.err
}

// OnClose has Close call f first.
func (h *Harness) OnClose(f func() error) { h.onClose(f) }

func (h *Harness) onClose(f func() error) { h.undo = append(h.undo, f) }

// closeOnSignal makes an interrupt clean up before it ends the process.
func (h *Harness) closeOnSignal() (stop func()) {
	c, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(c, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case <-c:
			fmt.Fprintln(os.Stderr, "harness: interrupted:", h.Close())
			os.Exit(130)
		case <-done:
		}
	}()
	return sync.OnceFunc(func() { signal.Stop(c); close(done) })
}

// Root is the top of the repository: the nearest directory above with a Makefile and a
// go.mod. Programs are looked for in its bin directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		_, mod := os.Stat(filepath.Join(dir, "go.mod"))
		_, mk := os.Stat(filepath.Join(dir, "Makefile"))
		if mod == nil && mk == nil {
			return dir, nil
		}
	}
	return "", errors.New("find the repository: no go.mod beside a Makefile above the working directory")
}

// dirPrefix carries our process id, so that a later run can tell leftovers of a killed
// one from a directory in use. The path is short: sockets allow 106 characters, and
// containerd's socket directory 42.
const dirPrefix = "/tmp/gw"

func workDir() (string, error) {
	old, err := filepath.Glob(dirPrefix + "[0-9]*-*")
	if err != nil {
		return "", err
	}
	for _, dir := range old {
		pid, _, _ := strings.Cut(strings.TrimPrefix(dir, dirPrefix), "-")
		if n, err := strconv.Atoi(pid); err == nil && errors.Is(unix.Kill(n, 0), unix.ESRCH) {
			_ = os.RemoveAll(dir)
			for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
				left, _ := filepath.Glob(filepath.Join(root, filepath.Base(dir)+"-*"))
				for _, cgroup := range left {
					_ = removeTree(cgroup)
				}
			}
		}
	}
	dir, err := os.MkdirTemp(filepath.Dir(dirPrefix), fmt.Sprintf("%s%d-", filepath.Base(dirPrefix), os.Getpid()))
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(filepath.Join(dir, "log"), 0o755)
}

// cgroup names the cgroups of a node, or of the wire; see workDir for the process id in it.
func (h *Harness) cgroup(node string) string { return filepath.Base(h.Dir) + "-" + node }

// Nested tells whether this host is the ground of docs/dev/kvmhost.md: its VMs are guests of
// a guest, and everything takes ten times as long, or more where that guest shares its CPU.
func Nested() bool { return os.Getenv("GODWIT_GROUND") == "nested" }

// Slow is a test's own bound, d, as long as this host needs it to be. It never touches a
// bound of the product.
func Slow(d time.Duration) time.Duration {
	if Nested() {
		return 15 * d
	}
	return d
}

// Build builds a program of integration/cmd and answers its path. The ground has no Go:
// its programs are built beforehand.
func (h *Harness) Build(ctx context.Context, name string) (string, error) {
	if Nested() {
		return filepath.Join(h.root, "bin", "integration", name), nil
	}
	out := filepath.Join(h.Dir, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", out, "./integration/cmd/"+name)
	cmd.Dir = h.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, b)
	}
	return out, nil
}

// pollEvery is how often Poll looks.
const pollEvery = 20 * time.Millisecond

// Pause is how long to wait after a look that took so long, and at least so long. In the ground a look takes the only
// processor from the VM that is waited for: it gets a third of the time.
func Pause(least, took time.Duration) time.Duration {
	if Nested() {
		return max(least, 2*took)
	}
	return least
}

// Poll calls f until it answers nil; on timeout it answers the last error that was not
// the timeout itself.
func Poll(ctx context.Context, timeout time.Duration, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last error
	for {
		begun := time.Now()
		err := f(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
				return fmt.Errorf("%w, and before: %w", cause, last)
			}
			return fmt.Errorf("after %s: %w", timeout, last)
		case <-time.After(Pause(pollEvery-time.Since(begun), time.Since(begun))):
		}
	}
}
