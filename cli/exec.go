package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/client"
)

// execFlags are those of godwit exec.
type execFlags struct {
	client.ExecOptions
	interactive, detach bool
}

func newExec(opts *options) *cobra.Command {
	f := &execFlags{}
	cmd := &cobra.Command{
		Use:         "exec VM COMMAND [ARG...]",
		Annotations: map[string]string{dockerCodes: "true"},
		Short:       "Run a further command in a VM that runs",
		Long: "Run a command in a VM of this node. The exit code is the command's. It is 125 if godwit fails, 126 if the\n" +
			"command cannot be run, 127 if there is no such command. Signals, as of Ctrl-C, go to the command.\n" +
			"A command that runs while the VM sleeps or moves goes along with it; its output then goes to the VM's log.\n" +
			"Flags stand before VM.",
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, opts, args) },
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what stands after the VM is the command's
	flags.BoolVarP(&f.interactive, "interactive", "i", false, "standard input is the command's")
	flags.BoolVarP(&f.Terminal, "tty", "t", false, "give the command a terminal")
	flags.BoolVarP(&f.detach, "detach", "d", false, "return when the command runs; its output goes nowhere")
	flags.StringArrayVarP(&f.Env, "env", "e", nil, "KEY=VALUE, or KEY with the value that it has here")
	flags.StringVarP(&f.Dir, "workdir", "w", "", "directory of the VM in which the command runs")
	flags.StringVarP(&f.User, "user", "u", "", "USER or USER:GROUP, as names of the VM or numbers")
	return cmd
}

func (f *execFlags) run(cmd *cobra.Command, opts *options, args []string) error {
	if err := checkTerminal(cmd, f.Terminal && f.interactive && !f.detach); err != nil {
		return err
	}
	if f.Dir != "" && !strings.HasPrefix(f.Dir, "/") {
		return fmt.Errorf("--workdir %q: write it from the root on: %w", f.Dir, errdefs.ErrInvalidArgument)
	}
	for _, kv := range f.Env {
		if name, _, _ := strings.Cut(kv, "="); name == "" {
			return fmt.Errorf("--env %q: write KEY=VALUE: %w", kv, errdefs.ErrInvalidArgument)
		}
	}
	o := f.ExecOptions
	o.Command, o.Size = args[1:], sizeOf(cmd, f.interactive && !f.detach)
	c := opts.client()
	defer c.Close()
	vm, err := c.Resolve(cmd.Context(), args[0])
	if err != nil {
		return err
	}
	if f.detach {
		_, err := c.Exec(cmd.Context(), vm, o, nil)
		return err
	}
	s := streamsOf(cmd, f.interactive, f.Terminal)
	p, err := c.Exec(cmd.Context(), vm, o, &s.Streams)
	if err != nil {
		return errors.Join(err, s.restore())
	}
	code, err := follows(cmd, p, s, f.interactive)
	if err != nil {
		return err
	}
	return ran(code)
}

func newAttach(opts *options) *cobra.Command {
	noStdin := false
	cmd := &cobra.Command{
		Use:   "attach VM",
		Short: "Connect this terminal to the command of a VM that runs",
		Long: "Connect standard input and output to the command of a VM of this node. The exit code is the command's.\n" +
			"At a terminal, Ctrl-P Ctrl-Q leaves the VM, which goes on. A VM that runs detached has a log instead.",
		RunE: opts.resolved(func(cmd *cobra.Command, _ []string, c *client.Client, vm *nodev1.VM) error {
			s, keys := streamsOf(cmd, !noStdin, false), &leaveKeys{attached: make(chan *client.Process, 1)}
			if s.Stdin != nil && s.in != nil {
				keys.Reader, s.Stdin = s.Stdin, keys
			}
			p, err := c.Attach(cmd.Context(), vm, &s.Streams)
			if err != nil {
				return err
			}
			keys.attached <- p
			code, err := follows(cmd, p, s, !noStdin)
			if err != nil {
				return err
			}
			if p.Left() {
				opts.note(cmd, fmt.Sprintf("left %s, which goes on. To return: godwit attach %s", vm.GetId(), vm.GetId()))
			}
			return ran(code)
		}),
	}
	cmd.Flags().BoolVar(&noStdin, "no-stdin", false, "look only: standard input is not the command's")
	return cmd
}

// leaveKeys reads a terminal up to Ctrl-P Ctrl-Q.
type leaveKeys struct {
	io.Reader
	attached chan *client.Process
	pending  bool // Ctrl-P was read, and is held back
}

const ctrlP, ctrlQ = 0x10, 0x11

func (k *leaveKeys) Read(b []byte) (int, error) {
	if len(b) < 2 {
		return 0, io.ErrShortBuffer
	}
	n, err := k.Reader.Read(b[:len(b)-1]) // one byte may come before
	out := make([]byte, 0, n+1)
	for _, key := range b[:n] {
		switch {
		case k.pending && key == ctrlQ:
			(<-k.attached).Leave()
			return copy(b, out), io.EOF
		case key == ctrlP && !k.pending:
			k.pending = true
			continue
		case k.pending:
			out = append(out, ctrlP)
			k.pending = key == ctrlP
			if k.pending {
				continue
			}
		}
		out = append(out, key)
	}
	return copy(b, out), err
}
