package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/containerd/console"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/client"
)

// terminalOf is the terminal that in is; nil: it is none.
func terminalOf(in any) console.Console {
	f, ok := in.(*os.File)
	if !ok {
		return nil
	}
	c, err := console.ConsoleFromFile(f)
	if err != nil {
		return nil
	}
	return c
}

// follows waits for a process whose streams are s, and answers its exit code. Signals go to the process.
// A terminal is raw meanwhile, and its size is the process's.
func follows(cmd *cobra.Command, p *client.Process, s *streams, interactive bool) (code int, err error) {
	ctx := context.WithoutCancel(cmd.Context()) // an interrupt is the process's
	defer func() { err = errors.Join(err, s.restore()) }()
	if p.Terminal {
		if err := s.terminal(interactive); err != nil {
			return 0, err
		}
	}
	if s.in != nil && p.Terminal && interactive {
		defer followSize(ctx, p, s.in)()
	}
	passed := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1,
		syscall.SIGUSR2}
	defer onSignal(func(s os.Signal) {
		if s, ok := s.(syscall.Signal); ok {
			_ = p.Signal(ctx, s) // it may have ended
		}
	}, passed...)()
	return p.Wait(ctx)
}

// sizeOf is the size of the terminal that a process takes over; nil: it takes over none.
func sizeOf(cmd *cobra.Command, taken bool) *client.TerminalSize {
	in := terminalOf(cmd.InOrStdin())
	if !taken || in == nil {
		return nil
	}
	size, err := in.Size()
	if err != nil {
		return nil
	}
	return &client.TerminalSize{Width: uint(size.Width), Height: uint(size.Height)}
}

// followSize gives the process's terminal the size of this one, now and after each change, until stop. A change is
// heard of before the size is read: none is missed.
func followSize(ctx context.Context, p *client.Process, in console.Console) (stop func()) {
	changed, over := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(changed, syscall.SIGWINCH)
	go func() {
		for {
			resize(ctx, p, in)
			select {
			case <-changed:
			case <-over:
				return
			}
		}
	}()
	return func() { signal.Stop(changed); close(over) }
}

// resize gives the process's terminal the size of this one.
func resize(ctx context.Context, p *client.Process, in console.Console) {
	if size, err := in.Size(); err == nil {
		_ = p.Resize(ctx, uint32(size.Width), uint32(size.Height)) // it may have ended
	}
}

// onSignal calls do for each of the signals until stop.
func onSignal(do func(os.Signal), signals ...os.Signal) (stop func()) {
	came, over := make(chan os.Signal, 16), make(chan struct{})
	signal.Notify(came, signals...)
	go func() {
		for {
			select {
			case s := <-came:
				do(s)
			case <-over:
				return
			}
		}
	}()
	return func() { signal.Stop(came); close(over) }
}
