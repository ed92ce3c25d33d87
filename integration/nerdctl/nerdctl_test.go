//go:build integration

// Package nerdctl tests what a user of nerdctl sees: its own commands on real VMs, whose
// network, hosts files and logs are made by nerdctl itself. What is compared was told by
// the guest, by nerdctl, or by the node's namespace.
package nerdctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

const (
	runtimeName = "io.containerd.godwit.v1"
	// stepTimeout bounds one command, which may boot a VM, on a machine without KVM.
	stepTimeout = 2 * time.Minute
	// monitor makes containerd's restart monitor look each second.
	monitor = "[plugins.'io.containerd.monitor.container.v1.restart']\n  interval = '1s'\n"
)

// site is a node with nerdctl configured as its administrator would.
type site struct {
	*harness.Node
	h *harness.Harness
}

// TestNerdctl shares one node and its images among all that nerdctl is asked to do.
func TestNerdctl(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true, Godwitd: true, Registry: harness.PlainHTTP, Containerd: monitor})
	s := &site{h.Node(0), h}
	s.write(t, "/etc/nerdctl/nerdctl.toml", fmt.Sprintf("address = %q\nnamespace = \"default\"\ncgroup_manager = "+
		"\"cgroupfs\"\ncni_path = \"/opt/cni/bin\"\n", s.Socket))
	s.importReal(t)
	before, err := s.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before = append(before, "link nerdctl0") // nerdctl's bridge stays, as with any runtime
	t.Run("refused", s.testRefused)
	t.Run("flags", s.testFlags)
	t.Run("more flags", s.testMoreFlags)
	t.Run("users", s.testUsers)
	t.Run("commands", s.testCommands)
	t.Run("terminal", s.testTerminal)
	t.Run("isolated", s.testIsolated)
	t.Run("images", s.testImages)
	t.Run("restart", s.testRestart)
	t.Run("redis", s.testRedis)
	if err := s.Clean(t.Context(), before); err != nil {
		t.Error(err)
	}
}

// inside is a path of the node's own file system.
func (s *site) inside(path string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", s.PID()), path)
}

func (s *site) write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(s.inside(path)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.inside(path), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// importReal builds and imports the images that are not busybox.
func (s *site) importReal(t *testing.T) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	probe, err := s.h.Build(t.Context(), "probe")
	if err != nil {
		t.Fatal(err)
	}
	all, err := images.Real(t.Context(), filepath.Join(root, "bin", "debs"), probe)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.h.Dir, "real.tar")
	if err := images.Write(file, all...); err != nil {
		t.Fatal(err)
	}
	if err := s.Import(t.Context(), file, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Error(err)
	}
}

// result is a command that ended.
type result struct {
	out, errs string
	code      int // -1: a signal ended it
}

// command is a nerdctl that runs.
type command struct {
	cmd       *exec.Cmd
	out, errs *output
	done      chan struct{}
}

// output is what a command wrote, readable while it runs.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// start starts nerdctl on the node; the test's end kills it.
func (s *site) start(t *testing.T, stdin io.Reader, args ...string) *command {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &command{out: &output{}, errs: &output{}, done: make(chan struct{})}
	c.cmd = s.Command(ctx, "nerdctl", args...)
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = stdin, c.out, c.errs
	if err := s.Enter(c.cmd.Start); err != nil {
		cancel()
		t.Fatalf("nerdctl %s: %v", strings.Join(args, " "), err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.done)
	}()
	t.Cleanup(func() { cancel(); <-c.done })
	return c
}

func (c *command) wait(t *testing.T) result {
	t.Helper()
	select {
	case <-c.done:
		return result{c.out.String(), c.errs.String(), c.cmd.ProcessState.ExitCode()}
	case <-time.After(stepTimeout):
		t.Fatalf("%s: no end after %s; stdout %q, stderr %q", c.cmd, stepTimeout, c.out, c.errs)
	}
	return result{}
}

// nerdctl runs nerdctl to its end, whatever that is.
func (s *site) nerdctl(t *testing.T, args ...string) result {
	t.Helper()
	return s.start(t, nil, args...).wait(t)
}

// ok is the stdout of a nerdctl that must succeed.
func (s *site) ok(t *testing.T, args ...string) string {
	t.Helper()
	r := s.nerdctl(t, args...)
	if r.code != 0 {
		t.Fatalf("nerdctl %s: exit code %d, stdout %q, stderr %q", strings.Join(args, " "), r.code, r.out, r.errs)
	}
	return r.out
}

// removedAtEnd has the test's end remove a container.
func (s *site) removedAtEnd(t *testing.T, name string) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), stepTimeout)
		defer cancel()
		if _, err := s.Run(ctx, "nerdctl", "rm", "-f", name); err != nil {
			t.Error(err)
		}
	})
}

// detached starts a container in the background; the test's end removes it. containerd's restart monitor, which looks
// each second here, may see the container before nerdctl has made its task, and makes one itself. nerdctl then fails in
// one of several ways, with any runtime. The monitor's count tells that it was there: such a run is made again.
func (s *site) detached(t *testing.T, name string, args ...string) {
	t.Helper()
	s.removedAtEnd(t, name)
	run := append([]string{"run", "-d", "--name", name, "--runtime", runtimeName}, args...)
	if !slices.Contains(args, "--restart") {
		s.ok(t, run...)
		return
	}
	r := s.nerdctl(t, run...)
	for try := 1; r.code != 0 && try < 4 && s.count(t, name) > 0; try++ {
		t.Logf("the restart monitor was faster than nerdctl run: %s", r.errs)
		s.removeStarted(t, name)
		r = s.nerdctl(t, run...)
	}
	if r.code != 0 {
		t.Fatalf("nerdctl %s: exit code %d, stderr %q", strings.Join(run, " "), r.code, r.errs)
	}
}

// removeStarted removes a container once the monitor has started it. "nerdctl rm -f" before that removes the container
// while the monitor makes a task of it.
func (s *site) removeStarted(t *testing.T, name string) {
	t.Helper()
	eventually(t, "the monitor starts "+name+", and it is removed", func(ctx context.Context) error {
		out, err := s.Run(ctx, "nerdctl", "inspect", "--format", "{{.State.Status}}", name)
		if err != nil {
			return err
		}
		if status := strings.TrimSpace(out); status != "running" && status != "exited" {
			return fmt.Errorf("it is %s", status)
		}
		_, err = s.Run(ctx, "nerdctl", "rm", "-f", name)
		return err
	})
}

// sh runs a script in a container by nerdctl exec.
func (s *site) sh(t *testing.T, name, script string) string {
	t.Helper()
	return s.ok(t, "exec", name, "sh", "-c", script)
}

// eventually waits until f answers nil.
func eventually(t *testing.T, what string, f func(ctx context.Context) error) {
	t.Helper()
	if err := harness.Poll(t.Context(), stepTimeout, f); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// says waits until a command has written a text.
func (o *output) says(t *testing.T, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("wait for %q", text), func(context.Context) error {
		if strings.Contains(o.String(), text) {
			return nil
		}
		return errors.New("output is " + o.String())
	})
}

// field is one of nerdctl inspect's, as a Go template names it.
func (s *site) field(t *testing.T, name, template string) string {
	t.Helper()
	return strings.TrimSpace(s.ok(t, "inspect", "--mode", "dockercompat", "--format", template, name))
}
