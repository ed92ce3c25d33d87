package trace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Span is one that is over, of a process that exports none itself.
type Span struct {
	Context, Parent string // as Context.String
	Name            string
	Start, End      int64    // Unix time in nanoseconds
	Attributes      []string `json:",omitempty"`
	Error           string   `json:",omitempty"`
}

// File is where the processes of a node that export nothing leave their spans.
type File string

// InState is the file of a node.
func InState(stateDir string) File { return File(filepath.Join(stateDir, "spans.jsonl")) }

// maxFile is what the file grows to while the spans are not taken. Later spans are dropped.
const maxFile = 1 << 20

// Begin implements Recorder.
func (f File) Begin(ctx context.Context, name string, attributes ...string) (context.Context, func(error)) {
	parent, ok := From(ctx)
	if !ok {
		return ctx, func(error) {}
	}
	own, begun := parent.Child(), time.Now()
	return With(ctx, own), func(err error) {
		s := Span{Context: own.String(), Parent: parent.String(), Name: name, Start: begun.UnixNano(),
			End: time.Now().UnixNano(), Attributes: attributes}
		if err != nil {
			s.Error = err.Error()
		}
		f.add(s)
	}
}

// add appends a line, whole, also while others append. A span that cannot be noted is lost: what
// it is about goes on.
func (f File) add(s Span) {
	line, err := json.Marshal(s)
	if info, serr := os.Stat(string(f)); err != nil || serr == nil && info.Size() > maxFile {
		return
	}
	file, err := os.OpenFile(string(f), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	_, _ = file.Write(append(line, '\n'))
	_ = file.Close()
}

// Take answers what was noted, once. It is set aside one call before it is read, so that a
// process that was about to append has done it by then.
func (f File) Take() (spans []Span, err error) {
	aside := string(f) + ".taken"
	data, err := os.ReadFile(aside)
	if err == nil {
		err = os.Remove(aside)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range bytes.Lines(data) {
		var s Span
		if json.Unmarshal(line, &s) == nil {
			spans = append(spans, s)
		}
	}
	if err := os.Rename(string(f), aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return slices.Clip(spans), err
	}
	return spans, nil
}
