package client

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/logtimes"
)

// stampClock has as many digits for each time, as docker's.
const stampClock = "2006-01-02T15:04:05.000000000Z07:00"

// noStamp stands for a time that is not known. It is as wide as a time in UTC.
const noStamp = "-                             "

// errNoTimes says that a log has no times at all.
var errNoTimes = errors.New("no times")

// timedLines shows lines with the times at which they began. Bytes of a line are passed on as they come.
type timedLines struct {
	stamps       bool
	since, until time.Time
	unsure       func() // called once, if a line is shown of which it is not known whether it was asked for

	first  time.Time // the oldest time that is known
	last   time.Time // of what was read last
	within bool      // a line has begun
	hide   bool      // that line is not shown
}

// newTimedLines is nil if no times are asked for.
func newTimedLines(id string, o LogOptions) *timedLines {
	if !o.Timestamps && o.Since.IsZero() && o.Until.IsZero() {
		return nil
	}
	t := &timedLines{stamps: o.Timestamps, since: o.Since, until: o.Until}
	t.unsure = func() {
		t.unsure = func() {}
		if o.Note != nil {
			o.Note(fmt.Sprintf("what %s wrote before %s has no times, and is shown whole", id,
				t.first.UTC().Format(time.RFC3339)))
		}
	}
	return t
}

// begin looks for the oldest time in files, the oldest of which is the first.
func (t *timedLines) begin(files []*os.File, log string) error {
	for _, f := range files {
		marks, err := logtimes.Read(f, log)
		if err != nil {
			return err
		}
		at, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		if first, known := marks.From(at); known {
			t.first = first.Time
			return nil
		}
	}
	if t.since.IsZero() && t.until.IsZero() {
		return nil
	}
	return errNoTimes
}

// noTimes is that error as a user reads it.
func noTimes(id string) error {
	return fmt.Errorf("the log of %s has no times: an earlier build wrote it, or its file is of --stdio. "+
		"To see it, leave --since and --until out: %w", id, errdefs.ErrFailedPrecondition)
}

// copy writes what a file has from where it is read.
func (t *timedLines) copy(out io.Writer, f *os.File, log string) error {
	r, err := logtimes.NewReader(f, log)
	for err == nil {
		var p logtimes.Part
		if p, err = r.Next(); err == nil {
			err = t.write(out, p)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// write prints what is wanted of a part. One without a time that comes after one with a time is not older: its time
// could not be written down, or its file has none yet.
func (t *timedLines) write(out io.Writer, p logtimes.Part) error {
	if !p.Known && !t.last.IsZero() {
		p.Time, p.Known = t.last, true
	}
	if p.Known {
		t.last = p.Time
	}
	_, err := out.Write(t.shown(p))
	return err
}

// shown is what is printed of a part.
func (t *timedLines) shown(p logtimes.Part) []byte {
	var out bytes.Buffer
	for data := p.Data; len(data) > 0; {
		if !t.within {
			if t.hide = !t.wanted(p.Time, p.Known); !t.hide && t.stamps {
				stamp := noStamp
				if p.Known {
					stamp = p.Time.UTC().Format(stampClock)
				}
				out.WriteString(stamp + " ")
			}
		}
		n := bytes.IndexByte(data, '\n') + 1
		if t.within = n == 0; t.within {
			n = len(data)
		}
		if !t.hide {
			out.Write(data[:n])
		}
		data = data[n:]
	}
	return out.Bytes()
}

// wanted reports whether a line of that time was asked for. One of an unknown time is older than the first known one.
func (t *timedLines) wanted(when time.Time, known bool) bool {
	if known {
		return !when.Before(t.since) && (t.until.IsZero() || !when.After(t.until))
	}
	if t.since.IsZero() && t.until.IsZero() {
		return true
	}
	if !t.since.IsZero() && !t.first.After(t.since) {
		return false
	}
	if !t.since.IsZero() || t.first.After(t.until) {
		t.unsure()
	}
	return true
}
