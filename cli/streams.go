package cli

import (
	"errors"
	"io"
	"sync"

	"github.com/containerd/console"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/client"
	"godwit.dev/godwit/internal/visible"
)

// streams are this program's, given to a process.
type streams struct {
	client.Streams

	in, out console.Console // as they were before; nil: it is no terminal
}

// streamsOf are this program's. What a guest writes goes through as it is, like that of any program. tty says that
// the process is known to have a terminal.
func streamsOf(cmd *cobra.Command, interactive, tty bool) *streams {
	out := visible.Under(cmd.OutOrStdout())
	s := &streams{in: terminalOf(cmd.InOrStdin()), out: terminalOf(out)}
	s.Stdout, s.Stderr = out, visible.Under(cmd.ErrOrStderr())
	if interactive {
		s.Stdin = cmd.InOrStdin()
	}
	if tty && s.out != nil {
		s.Stdout = &beforeFirst{Writer: out, do: s.plain}
	}
	return s
}

// plain has the terminal of the output show ends of lines as they come. The process's terminal has made "\r\n" of
// "\n" already, and this one would make "\r\r\n" of that. A raw console.Console does so too.
func (s *streams) plain() error {
	if s.out == nil {
		return nil
	}
	return console.ClearONLCR(s.out.Fd())
}

// terminal prepares those of this program for a process that has one.
func (s *streams) terminal(interactive bool) error {
	if s.in != nil && interactive {
		if err := s.in.SetRaw(); err != nil {
			return err
		}
	}
	return s.plain()
}

// restore makes the terminals what they were.
func (s *streams) restore() error {
	var errs []error
	for _, c := range []console.Console{s.in, s.out} {
		if c != nil {
			errs = append(errs, c.Reset())
		}
	}
	return errors.Join(errs...)
}

// beforeFirst calls do once, before anything is written.
type beforeFirst struct {
	io.Writer

	do   func() error
	once sync.Once
	err  error
}

// Write implements io.Writer.
func (b *beforeFirst) Write(p []byte) (int, error) {
	if b.once.Do(func() { b.err = b.do() }); b.err != nil {
		return 0, b.err
	}
	return b.Writer.Write(p)
}
