// Package tool runs the tools of package guesttool in the guest. The calling process is in the
// mounts and the pid namespace of the container already, on one thread only: a tool does all its
// work with paths on the goroutine that called Run.
package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/guesttool"
)

// Run runs the tool that args name and answers the exit code.
func Run(args []string) int {
	report, err := run(args, os.Stdin, os.Stdout)
	if err != nil {
		report = guesttool.Failed(err)
	}
	if err := json.NewEncoder(os.Stderr).Encode(report); err != nil || report.Error != "" {
		return 1
	}
	return 0
}

func run(args []string, in io.Reader, out io.Writer) (*guesttool.Report, error) {
	if len(args) == 0 {
		return nil, fmt.Errorf("no tool is named: %w", errdefs.ErrInvalidArgument)
	}
	report := new(guesttool.Report)
	var answer any
	var err error
	switch name, args := args[0], args[1:]; {
	case name == guesttool.Stat && len(args) == 1:
		answer, err = stat(args[0])
	case name == guesttool.Pack && len(args) == 2:
		report.Result, err = pack(out, args[0], args[1])
	case name == guesttool.Unpack && len(args) == 3:
		report.Result, err = unpack(in, args[0], args[1], args[2] == guesttool.KeepOwners)
	case name == guesttool.Top && len(args) == 0:
		answer, err = top()
	case name == guesttool.User && len(args) == 1:
		answer, err = identity(args[0])
	default:
		return nil, fmt.Errorf("this guest has no tool %q with %d arguments: %w", name, len(args), errdefs.ErrInvalidArgument)
	}
	if err == nil && answer != nil {
		err = json.NewEncoder(out).Encode(answer)
	}
	return report, err
}

// terminated calls f once if the process is told to end.
func terminated(f func()) (over func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	go func() {
		if _, told := <-signals; told {
			f()
			os.Exit(128 + int(unix.SIGTERM))
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}

// patience is how long a stream may bring nothing before its other end counts as gone: a VM may
// have slept or moved meanwhile.
const patience = 5 * 60 * 1000 // milliseconds

// patient reads from a file descriptor that may never end.
type patient struct{ fd int }

func (p patient) Read(b []byte) (int, error) {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, patience)
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 {
			err = fmt.Errorf("nothing came for 5 minutes: %w", errdefs.ErrUnavailable)
		}
		if err != nil {
			return 0, err
		}
		break
	}
	n, err := syscall.Read(p.fd, b)
	switch {
	case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read stdin: %w", err)
	case n == 0 && len(b) > 0:
		return 0, io.EOF
	}
	return n, nil
}
