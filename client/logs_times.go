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

// markPause is waited for the time of what was just written: it is written after the text.
const markPause = 10 * time.Millisecond

// errNoTimes says that a log has no times at all.
var errNoTimes = errors.New("no times")

// timedLines shows lines with the times at which they began. Bytes of a line are passed on as they come.
type timedLines struct {
	stamps       bool
	since, until time.Time
	unsure       func() // called once, if a line is shown of which it is not known whether it was asked for

	first  time.Time // the oldest time that is known
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
		if len(marks) > 0 {
			t.first = marks[0].Time
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
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	var marks logtimes.Marks
	buf := make([]byte, tailBlock)
	for first := true; ; first = false {
		n, err := f.Read(buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && first {
			marks, err = logtimes.Read(f, log)
		}
		if err == nil && n < len(buf) && (len(marks) == 0 || marks[len(marks)-1].Offset < at) {
			time.Sleep(markPause)
			marks, err = logtimes.Read(f, log)
		}
		if err == nil {
			_, err = out.Write(t.shown(buf[:n], at, marks))
		}
		if err != nil {
			return err
		}
		at += int64(n)
	}
}

// shown is what is printed of bytes at an offset.
func (t *timedLines) shown(data []byte, at int64, marks logtimes.Marks) []byte {
	var out bytes.Buffer
	for len(data) > 0 {
		if !t.within {
			when, known := marks.At(at)
			if t.hide = !t.wanted(when, known); !t.hide && t.stamps {
				stamp := noStamp
				if known {
					stamp = when.UTC().Format(stampClock)
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
		data, at = data[n:], at+int64(n)
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
