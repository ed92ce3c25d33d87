package shim

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	runcio "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/process"
	"github.com/containerd/errdefs"
)

// Stdio names a process' streams as containerd gave them.
type Stdio struct {
	Stdin    string `json:"stdin,omitempty"`
	Stdout   string `json:"stdout,omitempty"`
	Stderr   string `json:"stderr,omitempty"`
	Terminal bool   `json:"terminal,omitempty"`
}

// streams are the host's ends of a process' stdio. An absent one is nil. They are all
// files that can be interrupted by a deadline or by Close.
type streams struct {
	stdin          *os.File
	hold           *os.File // a writer of our own: a client that detaches is no end of file
	stdout, stderr *os.File
	outToo, errToo *follower // of clients that attach later; nil: none can
	logger         int       // process of the logging program; 0: none
	log            *logFile  // that the outputs are; nil: they are none, or nobody bounds it
}

// openStreams opens what s names: fifos, file:// and binary:// URIs. log, if not nil, is the
// file.
func openStreams(namespace, id string, s Stdio, log *logFile) (_ *streams, err error) {
	st := &streams{log: log}
	defer func() {
		if err != nil {
			st.close()
			if errors.Is(err, os.ErrNotExist) {
				err = fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
			}
			err = fmt.Errorf("open stdio of %q: %w", id, err)
		}
	}()
	if err := st.openOutput(namespace, id, s); err != nil || s.Stdin == "" {
		return st, err
	}
	return st, st.openInput(s.Stdin)
}

func (st *streams) openInput(path string) (err error) {
	if st.stdin, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
		return err
	}
	st.hold, err = os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	return err
}

func (st *streams) openOutput(namespace, id string, s Stdio) error {
	u, err := url.Parse(s.Stdout)
	if err != nil {
		return fmt.Errorf("stdout %q: %w: %w", s.Stdout, err, errdefs.ErrInvalidArgument)
	}
	switch u.Scheme {
	case "file":
		open := func() (*os.File, error) { return openLogFile(u.Path) }
		if st.log != nil {
			open = st.log.open
		}
		if st.stdout, err = open(); err == nil {
			st.stderr, err = open()
		}
		return err
	case "binary", "binary-v2":
		return st.startLogger(namespace, id, u)
	case "", "fifo":
	default:
		return fmt.Errorf("stdout %q: scheme %s: %w", s.Stdout, u.Scheme, errdefs.ErrNotImplemented)
	}
	var errs error
	st.stdout, err = openSink(s.Stdout)
	if !s.Terminal {
		st.stderr, errs = openSink(s.Stderr)
	}
	return errors.Join(err, errs)
}

// openSink opens one fifo, or plain file. A fifo is opened for reading too, so that a
// client may go and come back.
func openSink(path string) (*os.File, error) {
	if path == "" {
		return nil, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode().Type() == os.ModeNamedPipe {
		return os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
}

func openLogFile(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
}

// loggerBound is how long a logging program may take until it is ready. A variable for
// the tests.
var loggerBound = 10 * time.Second

// startLogger starts a logging program: it reads stdout from descriptor 3 and stderr
// from 4, and closes 5 when it is ready.
func (st *streams) startLogger(namespace, id string, u *url.URL) error {
	var ends [3][2]*os.File
	for i := range ends {
		r, w, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("start logger: %w", err)
		}
		defer r.Close()
		ends[i] = [2]*os.File{r, w}
	}
	out, errs, wait := ends[0], ends[1], ends[2]
	cmd := runcio.NewBinaryCmd(u, id, namespace)
	cmd.ExtraFiles = []*os.File{out[0], errs[0], wait[1]}
	err := cmd.Start()
	wait[1].Close()
	if err != nil {
		return errors.Join(fmt.Errorf("start logger %s: %w", u.Path, err), out[1].Close(), errs[1].Close())
	}
	st.stdout, st.stderr, st.logger = out[1], errs[1], cmd.Process.Pid
	// It ends by itself when both streams have ended.
	go func() { _ = cmd.Wait() }()
	if err := wait[0].SetReadDeadline(time.Now().Add(loggerBound)); err != nil {
		return fmt.Errorf("start logger: %w", err)
	}
	n, err := wait[0].Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = cmd.Process.Kill()
		return fmt.Errorf("start logger %s: it was not ready after %v, and did not close descriptor 5: %w", u.Path, loggerBound, errdefs.ErrFailedPrecondition)
	}
	if err != nil && err != io.EOF {
		return fmt.Errorf("start logger %s: %w", u.Path, err)
	}
	if n == 0 && u.Scheme == "binary-v2" {
		return fmt.Errorf("start logger %s: it ended before it was ready: %w", u.Path, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// closeStdin makes what was written so far the end of stdin.
func (st *streams) closeStdin() {
	if st != nil && st.hold != nil {
		st.hold.Close()
	}
}

// close may be called more than once. It interrupts whoever uses the files.
func (st *streams) close() {
	if st == nil {
		return
	}
	for _, f := range []*os.File{st.stdin, st.hold, st.stdout, st.stderr} {
		if f != nil {
			f.Close()
		}
	}
	st.outToo.close()
	st.errToo.close()
}
