package cli

import (
	"context"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"
)

// each is the body of a verb that takes several VMs: those that fail are named, and the others are done.
func (o *options) each(do func(context.Context, *client.Client, *nodev1.VM) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		for _, arg := range args {
			if err := o.vm(arg); err != nil {
				return err
			}
		}
		c := o.client()
		defer c.Close()
		var failed []error
		together := o.machine() && len(args) > 1
		done := doneDocument{}
		for _, arg := range args {
			vm, err := c.Resolve(cmd.Context(), arg)
			if err == nil {
				err = do(cmd.Context(), c, vm)
			}
			switch {
			case err != nil:
			case together:
				done.VMs = append(done.VMs, doneVM{vm.GetNamespace(), vm.GetId()})
			default:
				err = named(cmd, o, vm, arg)
			}
			if err != nil {
				failed = append(failed, err)
			}
			if cmd.Context().Err() != nil {
				break
			}
		}
		if len(done.VMs) > 0 {
			if err := screen.Document(cmd.OutOrStdout(), o.format(), done); err != nil {
				return err
			}
		}
		if len(failed) == 1 {
			return failed[0]
		}
		if len(failed) > 1 {
			return &eachError{failed}
		}
		return nil
	}
}

// doneDocument is what a verb prints that was given several VMs: those that it has done it with.
type doneDocument struct {
	VMs []doneVM `json:"vms"`
}

type doneVM struct {
	Namespace string `json:"namespace"`
	ID        string `json:"id"`
}

// resolved is the body of a verb whose first argument is a VM of this node.
func (o *options) resolved(do func(*cobra.Command, []string, *client.Client, *nodev1.VM) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		c := o.client()
		defer c.Close()
		vm, err := c.Resolve(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return do(cmd, args, c, vm)
	}
}

func newStart(opts *options) *cobra.Command {
	attach := false
	cmd := &cobra.Command{
		Use:   "start VM [VM...]",
		Short: "Run a VM that was created or stopped, with its disk as it was",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !attach {
				return opts.each(func(ctx context.Context, c *client.Client, vm *nodev1.VM) error {
					_, err := c.Start(ctx, vm, nil)
					return err
				})(cmd, args)
			}
			if len(args) > 1 {
				return misuse(cmd, "--attach takes one VM")
			}
			c := opts.client()
			defer c.Close()
			vm, err := c.Resolve(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			s := streamsOf(cmd, true, false)
			p, err := c.Start(cmd.Context(), vm, &s.Streams)
			if err != nil {
				return err
			}
			code, err := follows(cmd, p, s, true)
			if err != nil {
				return err
			}
			return ran(code)
		},
	}
	cmd.Flags().BoolVarP(&attach, "attach", "a", false, "pass its streams on, and end as it does")
	return cmd
}

func newStop(opts *options) *cobra.Command {
	after := stopFlag{}
	cmd := &cobra.Command{
		Use:   "stop VM [VM...]",
		Short: "End a VM, and keep its disk",
		Long: "Send the process its stop signal, and kill it when it has not ended in time. The disk stays:\n" +
			"godwit start runs it again. RAM does not: godwit hibernate keeps that too.",
		PreRunE: after.check,
		RunE: opts.each(func(ctx context.Context, c *client.Client, vm *nodev1.VM) error {
			return c.Stop(ctx, vm, after.duration())
		}),
	}
	after.add(cmd)
	return cmd
}

func newRestart(opts *options) *cobra.Command {
	after := stopFlag{}
	cmd := &cobra.Command{
		Use:     "restart VM [VM...]",
		Short:   "Stop a VM and start it again, with its disk as it was",
		PreRunE: after.check,
		RunE: opts.each(func(ctx context.Context, c *client.Client, vm *nodev1.VM) error {
			return c.Restart(ctx, vm, after.duration())
		}),
	}
	after.add(cmd)
	return cmd
}

// stopFlag is how long a process may take to end.
type stopFlag struct{ seconds int }

func (f *stopFlag) add(cmd *cobra.Command) {
	cmd.Flags().IntVarP(&f.seconds, "time", "t", -1, "seconds until it is killed (default: as it was made, else 10)")
}

func (f *stopFlag) check(cmd *cobra.Command, _ []string) error {
	if cmd.Flags().Changed("time") && f.seconds < 0 {
		return fmt.Errorf("--time %d: 0 or more: %w", f.seconds, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (f *stopFlag) duration() time.Duration { return time.Duration(f.seconds) * time.Second }

func newKill(opts *options) *cobra.Command {
	name, s := "", syscall.SIGKILL
	cmd := &cobra.Command{
		Use:   "kill VM [VM...]",
		Short: "Send a signal to the process of a VM",
		PreRunE: func(*cobra.Command, []string) (err error) {
			if s, err = client.ParseSignal(name); err != nil {
				return fmt.Errorf("--signal: %w", err)
			}
			return nil
		},
		RunE: opts.each(func(ctx context.Context, c *client.Client, vm *nodev1.VM) error { return c.Kill(ctx, vm, s) }),
	}
	cmd.Flags().StringVarP(&name, "signal", "s", "KILL", "its name or number")
	return cmd
}

func newRename(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "rename VM NEW",
		Short: "Give a VM of this node another name; its id stays",
		RunE: opts.resolved(func(cmd *cobra.Command, args []string, c *client.Client, vm *nodev1.VM) error {
			if err := c.Rename(cmd.Context(), vm, args[1]); err != nil {
				return err
			}
			return opts.print(cmd, screen.Result{Value: vm, Names: []string{fullName(vm)},
				Text: func(io.Writer) error { return nil }})
		}),
	}
}

// portsDocument is what port prints.
type portsDocument struct {
	Ports []portDocument `json:"ports"`
}

type portDocument struct {
	Port     int    `json:"port"`
	Protocol string `json:"protocol"`
	HostPort int    `json:"hostPort"`
	HostIP   string `json:"hostIP"`
}

func newPort(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "port VM",
		Short: "List the ports of a VM that the host publishes",
		RunE: opts.resolved(func(cmd *cobra.Command, _ []string, c *client.Client, vm *nodev1.VM) error {
			ports, err := c.Ports(cmd.Context(), vm)
			if err != nil {
				return err
			}
			list, lines := make([]portDocument, 0, len(ports)), make([]string, 0, len(ports))
			for _, p := range ports {
				list = append(list, portDocument{int(p.ContainerPort), p.Protocol, int(p.HostPort), p.HostIP})
				lines = append(lines, fmt.Sprintf("%d/%s -> %s:%d", p.ContainerPort, p.Protocol, p.HostIP, p.HostPort))
			}
			return opts.print(cmd, screen.Result{Value: portsDocument{list}, Names: lines, Text: saidLines(lines)})
		}),
	}
}

func newHook(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:    client.HookVerb + " KIND",
		Short:  "Make or give back the network of a VM, as its OCI hook",
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := opts.client()
			defer c.Close()
			return c.Hook(cmd.Context(), args[0], cmd.InOrStdin())
		},
	}
}
