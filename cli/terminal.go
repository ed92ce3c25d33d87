package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/containerd/console"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/client"
)

// terminalOf is the terminal that in is; nil: it is none.
func terminalOf(in io.Reader) console.Console {
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

// follows waits for a process whose streams are this program's, and answers its exit code. Signals go to the process.
// A terminal is raw meanwhile, and its size is the process's.
func follows(cmd *cobra.Command, p *client.Process, interactive bool) (code int, err error) {
	ctx := context.WithoutCancel(cmd.Context()) // an interrupt is the process's
	if in := terminalOf(cmd.InOrStdin()); in != nil && p.Terminal && interactive {
		if err := in.SetRaw(); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, in.Reset()) }()
		resize(ctx, p, in)
		defer onSignal(func(os.Signal) { resize(ctx, p, in) }, syscall.SIGWINCH)()
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
