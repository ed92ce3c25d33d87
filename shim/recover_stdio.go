package shim

import (
	"errors"
	"net/url"
	"os"
)

// openLeft is open for the task of a VM that runs on under a successor: its client may have gone
// with it, and taken its fifos along.
func (t *Task) openLeft() *streams {
	vm := t.vm
	st, err := openLeft(vm.namespace, vm.id, t.init.stdio, t.logOf(t.init.stdio))
	if err != nil {
		vm.log.Warn("stdio of the adopted task is gone: what it writes there goes nowhere", "error", err)
	}
	t.freeLogger(st)
	return st
}

// openLeft opens what there is of s, and says what there is not. An output that cannot be opened
// goes nowhere: a guest whose output nobody takes stands still. So does one whose reader leaves
// later, since no other will come. A stdin that is gone has nothing more to say.
func openLeft(namespace, id string, s Stdio, log *logFile) (*streams, error) {
	st := &streams{log: log}
	err := st.openOutput(namespace, id, s)
	if err != nil && st.logger != 0 { // it is not ready, and reads nothing
		st.close()
		st = &streams{}
	}
	errs := []error{err}
	goes := func(to **os.File, named bool) {
		if *to != nil {
			*to = onlyWriter(*to)
		} else if named {
			*to, err = nowhereFile(nil)
			errs = append(errs, err)
		}
	}
	u, bad := url.Parse(s.Stdout)
	both := bad == nil && u.Scheme != "" && u.Scheme != "fifo" // a file or a program takes stderr too
	goes(&st.stdout, s.Stdout != "")
	goes(&st.stderr, both || s.Stderr != "" && !s.Terminal)
	if s.Stdin != "" {
		errs = append(errs, st.openInput(s.Stdin))
	}
	return st, errors.Join(errs...)
}

// onlyWriter is a fifo, which is open for both, for writing alone: to write to it fails where
// nobody reads. Any other file is as it was.
func onlyWriter(f *os.File) *os.File {
	w := writerOf(f)
	if w < 0 {
		return f
	}
	defer f.Close()
	return os.NewFile(uintptr(w), f.Name())
}
