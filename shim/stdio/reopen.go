package stdio

import (
	"errors"
	"net/url"
	"os"
)

// Reopen is Open for a process that runs and whose client may have gone. It opens what there is of s;
// the error tells what there is not. An output that cannot be opened goes to /dev/null: a guest whose
// output is not taken stands still. Output whose reader leaves later is dropped, since no other reader
// will come. A stdin that is gone counts as ended.
func Reopen(namespace, id string, s URIs, log *LogFile) (*Streams, error) {
	st := &Streams{log: log}
	err := st.openOutput(namespace, id, s)
	if err != nil && st.loggerPID != 0 { // it is not ready, and reads nothing
		st.Close()
		st = &Streams{}
	}
	errs := []error{err}
	discard := func(to **os.File, named bool) {
		if *to != nil {
			*to = writeOnly(*to)
		} else if named {
			*to, err = openDevNull(nil)
			errs = append(errs, err)
		}
	}
	u, bad := url.Parse(s.Stdout)
	both := bad == nil && u.Scheme != "" && u.Scheme != "fifo" // a file or a program takes stderr too
	discard(&st.stdout, s.Stdout != "")
	discard(&st.stderr, both || s.Stderr != "" && !s.Terminal)
	if s.Stdin != "" {
		errs = append(errs, st.openInput(s.Stdin))
	}
	return st, errors.Join(errs...)
}

// writeOnly turns a fifo that is open for reading and writing into one for writing alone: a write
// fails when there is no reader. Any other file stays as it is.
func writeOnly(f *os.File) *os.File {
	w := openWriter(f)
	if w < 0 {
		return f
	}
	defer f.Close()
	return os.NewFile(uintptr(w), f.Name())
}
