//go:build integration

// Package vmdisk runs VMs from images that carry a disk, through firmware and with a
// kernel. What it compares was written by the guest on its serial console, by ctr, or by
// the node's file system.
package vmdisk

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/vmm/cloudhypervisor"
)

const runtimeName = "io.containerd.godwit.v1"

// stepTimeout bounds what may boot a VM through firmware on a machine without KVM.
var stepTimeout = harness.Slow(3 * time.Minute)

// site is two nodes.
type site struct {
	h    *harness.Harness
	a, b *harness.Node
}

// newSite makes them, with the images that write makes on the first.
func newSite(t *testing.T, write func(file string) error) *site {
	t.Helper()
	h := harness.New(t, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Godwitd: true})
	s := &site{h: h, a: h.Node(0), b: h.Node(1)}
	file := filepath.Join(h.Dir, "disks.tar")
	if err := write(file); err != nil {
		t.Fatal(err)
	}
	if err := s.a.Import(t.Context(), file, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Error(err)
	}
	return s
}

// writeDisks makes the images of VM disks; the ground has them, and nothing to make them.
func writeDisks(t *testing.T, file string) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	bin := filepath.Join(root, "bin")
	if harness.Nested() {
		return os.Symlink(filepath.Join(bin, "integration", "disks.tar"), file)
	}
	return images.WriteVMDisks(t.Context(), filepath.Join(bin, "debs"), filepath.Join(bin, "guest"), "", file)
}

// byKernel are the flags of a VM that a kernel of its image boots. form is one that the VMM
// takes in each of its versions.
func byKernel(form string) []string {
	return []string{"--annotation", "godwit.dev/kernel=/boot/" + form, "--annotation", "godwit.dev/initrd=/boot/initrd",
		"--annotation", "godwit.dev/cmdline=" + cmdline()}
}

// form is that of the kernel: Cloud Hypervisor has always taken an ELF file.
func form() string {
	if harness.VMM() == cloudhypervisor.Name {
		return "vmlinux"
	}
	return "vmlinuz"
}

func cmdline() string {
	if harness.Nested() {
		return images.SystemCmdline + " " + harness.NestedCmdline
	}
	return images.SystemCmdline
}

// console is a ctr in the foreground: its streams are the serial port of a VM.
type console struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *output
	errs  *output
	done  chan struct{}
}

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
	return strings.ReplaceAll(o.buf.String(), "\r", "")
}

// run starts a VM in the foreground; the test's end kills its ctr.
func run(t *testing.T, n *harness.Node, args ...string) *console {
	t.Helper()
	return foreground(t, n, append([]string{"run", "--runtime", runtimeName}, args...)...)
}

func foreground(t *testing.T, n *harness.Node, args ...string) *console {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &console{t: t, out: &output{}, errs: &output{}, done: make(chan struct{})}
	c.cmd = n.Command(ctx, "ctr", n.CtrArgs(args...)...)
	c.cmd.Stdout, c.cmd.Stderr = c.out, c.errs
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		cancel()
		t.Fatal(err)
	}
	if err := n.Enter(c.cmd.Start); err != nil {
		cancel()
		t.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.done)
	}()
	t.Cleanup(func() { cancel(); <-c.done })
	return c
}

// ended waits for the end of ctr and answers its exit code.
func (c *console) ended() int {
	c.t.Helper()
	select {
	case <-c.done:
		return c.cmd.ProcessState.ExitCode()
	case <-time.After(stepTimeout):
		c.t.Fatalf("ctr does not end; it says %q, the console %q", c.errs, tail(c.out.String()))
	}
	return -1
}

// sends writes a line on the console.
func (c *console) sends(line string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.stdin, line); err != nil {
		c.t.Fatal(err)
	}
}

// types sends a line and waits until the guest has obeyed.
func (c *console) types(line string) {
	c.t.Helper()
	c.sends(line)
	c.says("system: did " + line)
}

// lives is an error once ctr has ended.
func (c *console) lives() error {
	select {
	case <-c.done:
		return fmt.Errorf("ctr ended with %d, %q; the console says %q", c.cmd.ProcessState.ExitCode(), c.errs,
			tail(c.out.String()))
	default:
		return nil
	}
}

// says waits until the guest has written a text.
func (c *console) says(text string) {
	c.t.Helper()
	wait(c.t, fmt.Sprintf("console says %q", text), func() error {
		if strings.Contains(c.out.String(), text) {
			return nil
		}
		if err := c.lives(); err != nil {
			c.t.Fatal(err)
		}
		return fmt.Errorf("console says %q", tail(c.out.String()))
	})
}

// state waits for the next that the guest tells of itself.
func (c *console) state() state {
	c.t.Helper()
	seen := len(states(c.out.String()))
	wait(c.t, "a tick", func() error {
		if err := c.lives(); err != nil {
			c.t.Fatal(err)
		}
		if len(states(c.out.String())) > seen {
			return nil
		}
		return fmt.Errorf("ctr says %q, the console %q", c.errs, tail(c.out.String()))
	})
	all := states(c.out.String())
	return all[len(all)-1]
}

// state is what the guest tells once a second, by name.
type state map[string]string

var tick = regexp.MustCompile(`system: (tick=.*)\.\n`)

func states(text string) []state {
	var all []state
	for _, m := range tick.FindAllStringSubmatch(text, -1) {
		s := state{}
		for _, pair := range strings.Fields(m[1]) {
			name, value, _ := strings.Cut(pair, "=")
			s[name] = value
		}
		all = append(all, s)
	}
	return all
}

func wait(t *testing.T, what string, ok func() error) {
	t.Helper()
	if err := harness.Poll(t.Context(), stepTimeout, func(context.Context) error { return ok() }); err != nil {
		t.Fatalf("wait for %s: %v", what, err)
	}
}

func tail(s string) string { return s[max(0, len(s)-1500):] }

// fails runs a VM that must be refused, and wants each text in what ctr says.
func fails(t *testing.T, n *harness.Node, want []string, args ...string) {
	t.Helper()
	c := run(t, n, append([]string{"--rm"}, args...)...)
	if code := c.ended(); code == 0 {
		t.Errorf("ctr run %s succeeds", strings.Join(args, " "))
	}
	for _, text := range want {
		if !strings.Contains(c.errs.String(), text) {
			t.Errorf("ctr run %s: %q, want %q", strings.Join(args, " "), c.errs, text)
		}
	}
}
