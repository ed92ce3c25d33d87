// Package stdio carries the standard streams of processes in a guest to and from the files that
// containerd names for them. It knows no VM: it asks a Guest by the id of the process.
//
// Streams are the files: fifos, files, and pipes of a logging program. A Pump moves the bytes of one
// process, and counts them in client.Offsets, so that a stop, or another shim, loses and repeats none.
// A LogFile is a file that is rotated, so that a guest cannot fill the disk.
package stdio

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/errdefs"
)

// URIs are the names of a process' streams, as containerd gives them: paths of fifos or files, or
// URIs (file, binary, binary-v2, fifo). An empty one is no stream.
type URIs struct {
	Stdin    string `json:"stdin,omitempty"`
	Stdout   string `json:"stdout,omitempty"`
	Stderr   string `json:"stderr,omitempty"`
	Terminal bool   `json:"terminal,omitempty"`
}

// Streams are the host's ends of a process' stdio. An absent one is nil. They are all
// files that can be interrupted by a deadline or by Close.
type Streams struct {
	stdin            *os.File
	stdinWriter      *os.File // a writer of our own: a client that detaches is no end of file
	stdout, stderr   *os.File
	outFifo, errFifo *clientFifo // of clients that attach later; nil: none can
	loggerPID        int         // process of the logging program; 0: none
	log              *LogFile    // that the outputs are; nil: they are none, or it has no bound
}

// Open opens what s names for the process id of a namespace. log, if not nil, is the file that a
// file URI names. Errors: NotFound for a path that is not there, InvalidArgument and NotImplemented
// for a URI, FailedPrecondition for a logging program that does not become ready.
func Open(namespace, id string, s URIs, log *LogFile) (_ *Streams, err error) {
	st := &Streams{log: log}
	defer func() {
		if err != nil {
			st.Close()
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

func (st *Streams) openInput(path string) (err error) {
	if st.stdin, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
		return err
	}
	st.stdinWriter, err = os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	return err
}

func (st *Streams) openOutput(namespace, id string, s URIs) error {
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
			st.log.own(st.stdout)
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
	st.stdout, err = openFifoOrFile(s.Stdout)
	if !s.Terminal {
		st.stderr, errs = openFifoOrFile(s.Stderr)
	}
	return errors.Join(err, errs)
}

// openFifoOrFile opens one fifo, or plain file. A fifo is opened for reading too, so that a
// client may go and come back.
func openFifoOrFile(path string) (*os.File, error) {
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

// Present reports which streams there are.
func (st *Streams) Present() (stdin, stdout, stderr bool) {
	return st.stdin != nil, st.stdout != nil, st.stderr != nil
}

// LoggerPID is the process of the logging program; 0: none.
func (st *Streams) LoggerPID() int { return st.loggerPID }

// CloseStdin makes what was written so far the end of stdin.
func (st *Streams) CloseStdin() {
	if st != nil && st.stdinWriter != nil {
		st.stdinWriter.Close()
	}
}

// Close may be called more than once. It interrupts reads and writes of the files.
func (st *Streams) Close() {
	if st == nil {
		return
	}
	for _, f := range []*os.File{st.stdin, st.stdinWriter, st.stdout, st.stderr} {
		if f != nil {
			f.Close()
		}
	}
	st.outFifo.close()
	st.errFifo.close()
}
