package client

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/internal/logtimes"
)

// timedLog is a log whose pieces have times, in seconds since 1970; 0: none, as of an earlier build.
type timedLog struct {
	*testing.T
	path string
	file *os.File
}

func newTimedLog(t *testing.T) *timedLog {
	t.Helper()
	l := &timedLog{T: t, path: filepath.Join(t.TempDir(), "log")}
	l.next()
	t.Cleanup(func() { _ = l.file.Close() })
	return l
}

func (l *timedLog) next() {
	l.Helper()
	_ = os.Rename(l.path+".1", l.path+".2")
	_ = os.Rename(l.path, l.path+".1")
	var err error
	if l.file, err = os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		l.Fatal(err)
	}
}

func (l *timedLog) write(at int64, text string) {
	l.Helper()
	info, err := l.file.Stat()
	if err == nil {
		_, err = l.file.WriteString(text)
	}
	if err == nil && at > 0 {
		err = (&logtimes.Writer{Path: l.path}).Note(l.file, info.Size(), time.Unix(at, 0))
	}
	if err != nil {
		l.Fatal(err)
	}
}

// show is what is printed, the times as seconds, and what is noted.
func (l *timedLog) show(o LogOptions, tail int) (text, noted string, err error) {
	o.Note = func(text string) { noted += text }
	var out strings.Builder
	r := &logReader{path: l.path, out: &out, times: newTimedLines("web", o)}
	defer r.close()
	err = r.begin(tail)
	text = out.String()
	for i := range 10 {
		text = strings.ReplaceAll(text, time.Unix(int64(i), 0).UTC().Format(stampClock), fmt.Sprint(i))
	}
	return strings.ReplaceAll(text, noStamp, "-"), noted, err
}

func second(n int64) time.Time { return time.Unix(n, 0) }

// Lines have the time at which they began: over files, in pieces, torn, and with bytes that are no text. Lines of an
// earlier build have none. Since and until show those of some time alone, and say of which lines that is not known.
func TestLogTimes(t *testing.T) {
	l := newTimedLog(t)
	l.write(0, "old\n")
	l.write(2, "two\nand two\nlong ")
	l.next()
	l.write(3, "line\n\xff\x00\n")
	l.write(5, "five\ntorn")
	all := "old\ntwo\nand two\nlong line\n\xff\x00\nfive\ntorn"
	for i, c := range []struct {
		o    LogOptions
		tail int
		want string
		note bool
	}{
		{LogOptions{}, -1, all, false},
		{LogOptions{Timestamps: true}, -1, "- old\n2 two\n2 and two\n2 long line\n3 \xff\x00\n5 five\n5 torn", false},
		{LogOptions{Timestamps: true}, 3, "3 \xff\x00\n5 five\n5 torn", false},
		{LogOptions{Since: second(3)}, -1, "\xff\x00\nfive\ntorn", false},
		{LogOptions{Since: second(2)}, -1, "two\nand two\nlong line\n\xff\x00\nfive\ntorn", false},
		{LogOptions{Since: second(1)}, -1, all, true},
		{LogOptions{Until: second(2)}, -1, "old\ntwo\nand two\nlong line\n", false},
		{LogOptions{Until: second(1)}, -1, "old\n", true},
		{LogOptions{Since: second(3), Until: second(4)}, -1, "\xff\x00\n", false},
		{LogOptions{Since: second(9)}, -1, "", false},
	} {
		text, noted, err := l.show(c.o, c.tail)
		if err != nil || text != c.want || (noted != "") != c.note {
			t.Errorf("%d: %q, noted %q, %v; want %q", i, text, noted, err, c.want)
		}
	}
}

// A log without times is shown whole, with a sign in the place of the times, and refused if some time was asked for.
func TestLogWithoutTimes(t *testing.T) {
	l := newTimedLog(t)
	l.write(0, "old\n")
	if text, _, err := l.show(LogOptions{Timestamps: true}, -1); err != nil || text != "- old\n" {
		t.Errorf("%q, %v", text, err)
	}
	if text, _, err := l.show(LogOptions{Since: second(1)}, -1); !errors.Is(err, errNoTimes) || text != "" {
		t.Errorf("%q, %v", text, err)
	}
}

// What comes later has its own time, also in a file that was rotated or emptied meanwhile.
func TestLogTimesAreFollowed(t *testing.T) {
	l := newTimedLog(t)
	l.write(1, "a\nb")
	var out strings.Builder
	r := &logReader{path: l.path, out: &out, times: newTimedLines("web", LogOptions{Timestamps: true})}
	defer r.close()
	err := r.begin(-1)
	l.write(2, "c\nd\n")
	err = errors.Join(err, r.more())
	l.next()
	l.write(3, "e\n")
	err = errors.Join(err, r.more(), l.file.Truncate(0), (&logtimes.Writer{Path: l.path}).Note(l.file, 0, second(4)))
	if _, werr := l.file.WriteString("f"); werr != nil {
		t.Fatal(werr)
	}
	err = errors.Join(err, r.more())
	want := ""
	for _, line := range []string{"1 a\n", "1 bc\n", "2 d\n", "3 e\n", "4 f"} {
		want += second(int64(line[0]-'0')).UTC().Format(stampClock) + line[1:]
	}
	if err != nil || out.String() != want {
		t.Errorf("%q, %v; want %q", out.String(), err, want)
	}
}

// A line whose time is not there yet, in the file after a rotation, is no older than those before: it is shown.
func TestLogTimesAfterARotation(t *testing.T) {
	l := newTimedLog(t)
	l.write(5, "a\n")
	var out strings.Builder
	r := &logReader{path: l.path, out: &out, times: newTimedLines("web", LogOptions{Since: second(2)})}
	defer r.close()
	err := r.begin(-1)
	l.next()
	l.write(0, "b\n")
	if err = errors.Join(err, r.more()); err != nil || out.String() != "a\nb\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
