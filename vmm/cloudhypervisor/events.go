package cloudhypervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// eventsPipe is the size of the pipe: the VMM drops, or cuts, what does not fit.
const eventsPipe = 1 << 20

func eventsPath(dir string) string { return filepath.Join(dir, "events") }

// makeEvents makes the named pipe for what the VMM reports and opens it for the VMM, for
// reading too: while no shim is there, what is reported waits for the next one.
func makeEvents(dir string) (*os.File, error) {
	path := eventsPath(dir)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("make event monitor %s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open event monitor: %w", err)
	}
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			// An unprivileged user has less; so be it.
			_, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, eventsPipe)
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open event monitor: %w", err), f.Close())
	}
	return f, nil
}

// openEvents opens the reader's end. It ends with the VMM.
func openEvents(dir string) (*os.File, error) {
	f, err := os.OpenFile(eventsPath(dir), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open event monitor: %w", err)
	}
	return f, nil
}

// event is what the VMM reports. It is a hint: some get lost, and some come before what
// they tell of is true.
type event struct {
	Source     string            `json:"source"`
	Event      string            `json:"event"`
	Properties map[string]string `json:"properties"`
}

func (e event) is(source, name string) bool { return e.Source == source && e.Event == name }

// readEvents hands every event to handle until r ends. Each is one JSON object with an empty line after it. Of one that
// was cut the rest is passed over.
func readEvents(r io.Reader, handle func(event)) {
	var pending []byte
	buf := make([]byte, 16<<10)
	for {
		n, err := r.Read(buf)
		pending = append(pending, buf[:n]...)
		for {
			one, rest, ok := bytes.Cut(pending, []byte("\n\n"))
			if !ok {
				break
			}
			pending = rest
			if e, ok := parseEvent(one); ok {
				handle(e)
			}
		}
		if len(pending) > eventsPipe { // no event is so long
			pending = nil
		}
		if err != nil {
			return
		}
	}
}

// parseEvent decodes the last event that begins in data: one that was cut may stand
// before it.
func parseEvent(data []byte) (e event, ok bool) {
	begin := bytes.LastIndex(data, []byte("{\n  \"timestamp\""))
	if begin < 0 {
		begin = 0
	}
	return e, json.Unmarshal(data[begin:], &e) == nil && e.Event != ""
}
