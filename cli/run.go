package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"
)

// runFlags are those of run.
type runFlags struct {
	vmFlags
	detach, remove bool
}

func newRun(opts *options) *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use:         "run IMAGE [COMMAND] [ARG...]",
		Annotations: map[string]string{dockerCodes: "true"},
		Short:       "Run an image as a VM",
		Long: "Make a VM of an image and run a command in it. The image is pulled where it is missing.\n" +
			"The exit code is the command's. It is 125 if godwit fails, 126 if the command cannot be run, 127 if there is " +
			"no such command.\n" +
			"After Ctrl-C in a pull, or before the VM runs, nothing of it is left. Flags stand before IMAGE.",
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.options(cmd, opts, args)
			if err == nil {
				err = f.check(cmd)
			}
			if err != nil {
				return err
			}
			c := opts.client()
			defer c.Close()
			if f.detach {
				return f.detached(cmd, opts, c, o)
			}
			return f.attached(cmd, opts, c, o)
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().BoolVarP(&f.detach, "detach", "d", false, "return when it runs; its output goes to a log (godwit logs)")
	cmd.Flags().BoolVar(&f.remove, "rm", false, "remove the VM when it has ended")
	return cmd
}

func (f *runFlags) check(cmd *cobra.Command) error {
	switch {
	case f.detach && f.remove:
		return fmt.Errorf("--detach and --rm: choose one. A VM that runs detached is removed by godwit rm: %w",
			errdefs.ErrInvalidArgument)
	case f.detach && f.interactive && !f.Terminal:
		return fmt.Errorf("--detach and --interactive: nobody is there who writes. Leave -i away, or add -t: %w",
			errdefs.ErrInvalidArgument)
	}
	return checkTerminal(cmd, f.Terminal && f.interactive && !f.detach)
}

// checkTerminal refuses a command that wants this terminal where there is none.
func checkTerminal(cmd *cobra.Command, wanted bool) error {
	if wanted && terminalOf(cmd.InOrStdin()) == nil {
		return fmt.Errorf("-it: standard input is no terminal. Leave -t away: %w", errdefs.ErrInvalidArgument)
	}
	return nil
}

// pulling shows the pull of an image, which told says how far it is, until stop. Mute shows nothing.
func pulling(cmd *cobra.Command, opts *options, image string, mute bool) (told func(client.PullProgress), stop func()) {
	shown := newProgress(cmd.ErrOrStderr(), mute || opts.machine())
	return func(p client.PullProgress) {
		shown.update(&nodev1.StatusResponse{Step: p.Phase + " " + image, Done: uint64(p.Done), Total: uint64(p.Total)})
	}, shown.finish
}

// detached runs a VM whose output goes to the node's log, and prints its name.
func (f *runFlags) detached(cmd *cobra.Command, opts *options, c *client.Client, o client.VMOptions) error {
	told, stop := pulling(cmd, opts, o.Image, f.quiet)
	o.Progress = told
	vm, _, err := c.Run(cmd.Context(), o, nil)
	stop()
	if err != nil {
		return err
	}
	return made(cmd, opts, vm)
}

// made prints the name of a VM.
func made(cmd *cobra.Command, opts *options, vm *nodev1.VM) error {
	return named(cmd, opts, vm, vm.GetId())
}

// named prints a VM by the name that the user gave.
func named(cmd *cobra.Command, opts *options, vm *nodev1.VM, name string) error {
	return opts.print(cmd, screen.Result{Value: vm, Names: []string{fullName(vm)}, Text: said("%s", name)})
}

// attached runs a VM whose streams are this program's, and ends as its command does.
func (f *runFlags) attached(cmd *cobra.Command, opts *options, c *client.Client, o client.VMOptions) error {
	o.Size = sizeOf(cmd, f.interactive)
	told, stop := pulling(cmd, opts, o.Image, f.quiet)
	o.Progress = told
	s := streamsOf(cmd, f.interactive, f.Terminal)
	vm, p, err := c.Run(cmd.Context(), o, &s.Streams)
	stop()
	if err != nil {
		return errors.Join(err, s.restore())
	}
	code, err := follows(cmd, p, s, f.interactive)
	if err != nil {
		return err
	}
	if f.remove {
		ctx := context.WithoutCancel(cmd.Context())
		left, err := c.RemoveEnded(ctx, vm)
		if left != nil {
			opts.note(cmd, left.Error())
		}
		if err != nil {
			return err
		}
	}
	return ran(code)
}

func newCreate(opts *options) *cobra.Command {
	f := &vmFlags{}
	cmd := &cobra.Command{
		Use:   "create IMAGE [COMMAND] [ARG...]",
		Short: "Make a VM of an image that does not run yet",
		Long:  "As godwit run, without running it: godwit start does. Its output goes to a log. Flags stand before IMAGE.",
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.options(cmd, opts, args)
			if err != nil {
				return err
			}
			c := opts.client()
			defer c.Close()
			told, stop := pulling(cmd, opts, o.Image, f.quiet)
			o.Progress = told
			vm, err := c.Create(cmd.Context(), o)
			stop()
			if err != nil {
				return err
			}
			return made(cmd, opts, vm)
		},
	}
	f.add(cmd.Flags())
	return cmd
}
