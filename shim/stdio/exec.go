package stdio

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/guest/client"
)

// State is what the next shim must know of the streams of a process that runs.
type State struct {
	Terminal bool           `json:"terminal,omitempty"`
	Stdin    bool           `json:"stdin,omitempty"` // which streams the guest carries
	Stdout   bool           `json:"stdout,omitempty"`
	Stderr   bool           `json:"stderr,omitempty"`
	Closed   bool           `json:"closed,omitempty"` // stdin ends after what was read of it
	Offsets  client.Offsets `json:"offsets"`
}

// ForExec opens the streams of an exec whose client did not come with it. The exec writes where st
// does, or to /dev/null: a guest whose output is not taken stands still. Clients attach by fifos
// whose names begin with prefix. An error leaves the exec without that stream.
func (st *Streams) ForExec(e State, prefix string) (*Streams, URIs, error) {
	all := Streams{log: st.log}
	var errs []error
	output := func(want bool, to ...*os.File) *os.File {
		if !want {
			return nil
		}
		f, err := duplicate(to...)
		errs = append(errs, err)
		return f
	}
	all.stdout = output(e.Stdout, st.stdout)
	all.stderr = output(e.Stderr, st.stderr, st.stdout) // a terminal has one of them
	named, err := all.MakeFifos(prefix)
	errs = append(errs, err)
	named.Terminal = e.Terminal
	switch {
	case !e.Stdin || e.Offsets.StdinDone:
	case e.Closed:
		all.stdin, all.stdinWriter, err = os.Pipe()
		errs = append(errs, err)
	default:
		if err = all.openStdinFifo(prefix + "-stdin"); err == nil {
			named.Stdin = prefix + "-stdin"
		}
		errs = append(errs, err)
	}
	return &all, named, errors.Join(errs...)
}

// openStdinFifo makes a fifo and takes stdin from it.
func (st *Streams) openStdinFifo(path string) (err error) {
	if err := makeFifo(path); err != nil {
		return err
	}
	return st.openInput(path)
}

// duplicate is another descriptor of the first file that is there, or one that discards.
func duplicate(all ...*os.File) (*os.File, error) {
	for _, f := range all {
		if f == nil {
			continue
		}
		raw, err := f.SyscallConn()
		if err != nil {
			return openDevNull(err)
		}
		fd, dup := -1, error(nil)
		if err := raw.Control(func(old uintptr) {
			fd, dup = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
		}); err != nil || dup != nil {
			return openDevNull(errors.Join(err, dup))
		}
		return os.NewFile(uintptr(fd), f.Name()), nil
	}
	return openDevNull(nil)
}

// openDevNull is a file that discards. It stands for one that could not be had because of cause.
func openDevNull(cause error) (*os.File, error) {
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	return f, errors.Join(cause, err)
}
