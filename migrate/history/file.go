package history

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protojson"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/durable"
)

// maxFile bounds in bytes what is read of a file: more was not written by godwit.
const maxFile = 64 << 20

// file has one event a line, in JSON. It holds up to twice as many as are kept, and is then written anew. An event is
// not synced: a host that loses its power loses the newest ones.
type file struct {
	path    string
	out     *os.File // nil: it has to be opened
	lines   int
	behind  bool // of what is kept, not all is in the file
	refused string
}

// open answers the events that are kept, the oldest first. A line that is none is left out: the last one may be torn.
func (f *file) open() (all []*nodev1.NodeEvent, err error) {
	info, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	f.behind = true // whatever cannot be read is written anew
	if err != nil {
		return nil, f.putAside(err)
	}
	if info.Size() > maxFile {
		return nil, f.putAside(fmt.Errorf("%s has %d bytes: %w", f.path, info.Size(), errdefs.ErrDataLoss))
	}
	data, err := os.ReadFile(f.path)
	if err != nil {
		return nil, f.putAside(err)
	}
	bad := 0
	for line := range bytes.Lines(data) {
		ev, last := new(nodev1.NodeEvent), uint64(0)
		if n := len(all); n > 0 {
			last = all[n-1].GetId()
		}
		o := protojson.UnmarshalOptions{DiscardUnknown: true} // fields of a later build
		if err := o.Unmarshal(line, ev); err != nil || ev.GetId() <= last {
			if bytes.HasSuffix(line, []byte("\n")) { // else it is the torn end
				bad++
			}
			continue
		}
		all = append(all, ev)
	}
	f.lines, f.behind = len(all), bad > 0 || len(data) > 0 && data[len(data)-1] != '\n'
	if n := len(all) - Kept; n > 0 {
		all = all[n:]
	}
	if bad > 0 {
		err = fmt.Errorf("%s: %d lines are no events, and were left out: %w", f.path, bad, errdefs.ErrDataLoss)
	}
	return all, err
}

// putAside keeps a file that cannot be read: its events may be there yet.
func (f *file) putAside(cause error) error {
	return errors.Join(cause, os.Rename(f.path, f.path+".unread"))
}

// add writes one more event to those that are kept. What fails is written with the next one.
func (f *file) add(ev *nodev1.NodeEvent, kept []*nodev1.NodeEvent) {
	err := f.try(ev, kept)
	f.behind = err != nil
	if err == nil {
		f.refused = ""
		return
	}
	if text := err.Error(); text != f.refused {
		f.refused = text
		slog.Warn("write the history of events", "path", f.path, "error", err)
	}
}

func (f *file) try(ev *nodev1.NodeEvent, kept []*nodev1.NodeEvent) error {
	line, err := encode(ev)
	if err != nil {
		return err
	}
	if f.behind || f.lines >= 2*Kept {
		return f.renew(line, kept)
	}
	if f.out == nil {
		if f.out, err = os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
			return durable.DiskError(err)
		}
	}
	if _, err := f.out.Write(line); err != nil {
		return durable.DiskError(err)
	}
	f.lines++
	return nil
}

// renew replaces the file by one with what is kept, and one more event.
func (f *file) renew(line []byte, kept []*nodev1.NodeEvent) error {
	var data bytes.Buffer
	for _, ev := range kept {
		line, err := encode(ev)
		if err != nil {
			return err
		}
		data.Write(line)
	}
	data.Write(line)
	if err := durable.WriteFile(f.path, data.Bytes(), 0o600); err != nil && !errors.Is(err, durable.ErrUnsynced) {
		return durable.DiskError(err)
	}
	f.lines = len(kept) + 1
	return f.close()
}

func (f *file) close() error {
	if f.out == nil {
		return nil
	}
	out := f.out
	f.out = nil
	return out.Close()
}

// encode is one line. protojson puts spaces where it likes, and no newline.
func encode(ev *nodev1.NodeEvent) ([]byte, error) {
	data, err := protojson.Marshal(ev)
	return append(data, '\n'), err
}
