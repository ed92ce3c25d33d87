package logtimes

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// note is one of a writer that has noted nothing yet.
func note(f *os.File, log string, start int64, at time.Time) error {
	return (&Writer{Path: log}).Note(f, start, at)
}

// Each byte has the time of the write that it came with. So it is after a rotation, and after another output has
// written out of turn. A torn line, and bytes of before the first time, say nothing.
func TestTimes(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	f := open(t, log)
	for start, at := range map[int64]int64{10: 1, 30: 3, 20: 2} {
		if err := note(f, log, start, time.Unix(at, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(log, log+".1"); err != nil {
		t.Fatal(err)
	}
	next := open(t, log)
	if err := note(next, log, 0, time.Unix(4, 0)); err != nil {
		t.Fatal(err)
	}
	names, _ := filepath.Glob(filepath.Join(dir(log), "log.*"))
	for _, name := range names {
		torn, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = torn.WriteString("rubbish\n40 9")
		}
		if err := errors.Join(err, torn.Close()); err != nil {
			t.Fatal(err)
		}
	}
	marks, err := Read(f, log)
	if err != nil || len(names) != 2 {
		t.Fatal(err, names)
	}
	for offset, want := range map[int64]int64{10: 1, 19: 1, 20: 2, 29: 2, 30: 3, 1000: 3} {
		if at, ok := marks.At(offset); !ok || at.Time.Unix() != want {
			t.Errorf("byte %d: %v, %v; want %d", offset, at, ok, want)
		}
	}
	if _, ok := marks.At(9); ok {
		t.Error("a byte of before the first time has one")
	}
	if marks, err := Read(next, log); err != nil || len(marks) != 1 {
		t.Errorf("next file: %v, %v", marks, err)
	}
	if marks, err := Read(open(t, filepath.Join(t.TempDir(), "old")), "old"); err != nil || len(marks) != 0 {
		t.Errorf("log of an earlier build: %v, %v", marks, err)
	}
}

// Times go with their file. Those of another log, whose name begins alike, stay.
func TestSweep(t *testing.T) {
	base := t.TempDir()
	log, other := filepath.Join(base, "log"), filepath.Join(base, "log.other")
	f, g := open(t, log), open(t, other)
	if err := errors.Join(note(f, log, 0, time.Now()), note(g, other, 0, time.Now()), Sweep(log)); err != nil {
		t.Fatal(err)
	}
	if names, _ := os.ReadDir(dir(log)); len(names) != 2 {
		t.Errorf("swept too much: %v", names)
	}
	if err := errors.Join(os.Remove(log), Sweep(log)); err != nil {
		t.Fatal(err)
	}
	if names, _ := os.ReadDir(dir(log)); len(names) != 1 || !strings.HasPrefix(names[0].Name(), "log.other.") {
		t.Errorf("left: %v", names)
	}
}

// The times of a log are bounded by its size, whatever the pieces are in which it is written. A log that was emptied
// begins anew.
func TestTimesAreBounded(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	f := open(t, log)
	const bytes = 20000
	w := &Writer{Path: log}
	for i := range int64(bytes) {
		if err := w.Note(f, i, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
	}
	size := func() (n int64) {
		names, err := os.ReadDir(dir(log))
		if err != nil || len(names) != 1 {
			t.Fatal(names, err)
		}
		info, err := names[0].Info()
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	if n := size(); n > free+bytes/share+100 {
		t.Errorf("%d bytes of times", n)
	}
	if err := note(f, log, 0, time.Unix(7, 0)); err != nil || size() != int64(len("0 7000000000\n0 =\n")) {
		t.Errorf("emptied: %v, %d bytes", err, size())
	}
}

// A log that grows slowly has a time for each second though its times are many. One without a bound has a time a
// minute at last. No log has more than is read.
func TestDue(t *testing.T) {
	const mib = 1 << 20
	for _, o := range []struct {
		size, start int64
		since       time.Duration
		want        bool
	}{
		{free, 0, 0, true}, {free + mib, 4 * mib, 0, true}, {free + mib + 1, 4 * mib, 0, false},
		{free + mib + 1, 4 * mib, time.Second, true}, {free + 4*mib + 1, 4 * mib, time.Second, false},
		{free + 4*mib + 1, 4 * mib, time.Minute, true}, {dense + 1, 1 << 40, 0, false},
		{dense + 1, 1 << 40, time.Second, true},
		{seconds + 1, 1 << 40, time.Second, false}, {seconds + 1, 1 << 40, time.Minute, true},
		{maxFile, 1 << 40, time.Hour, false},
	} {
		if got := due(o.size, o.start, o.since); got != o.want {
			t.Errorf("%+v: %v", o, got)
		}
	}
}

// Times of which there are more than are read lose none of the first ones.
func TestManyTimes(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	f := open(t, log)
	if err := note(f, log, 0, time.Unix(7, 0)); err != nil {
		t.Fatal(err)
	}
	names, _ := filepath.Glob(filepath.Join(dir(log), "log.*"))
	if err := os.Truncate(names[0], 2*maxFile); err != nil {
		t.Fatal(err)
	}
	if marks, err := Read(f, log); err != nil || len(marks) != 1 || marks[0].Time.Unix() != 7 {
		t.Errorf("%v, %v", marks, err)
	}
}

// What a VM wrote begins after what an earlier one of its name wrote, also before it has written anything. Who is not
// known counts as no other VM.
func TestBegin(t *testing.T) {
	for _, c := range []struct{ writers, want string }{
		{"", "0"}, {"-", "0"}, {"b", "0"}, {"-b", "0"}, {"a", "1"}, {"a-", "1"}, {"ab", "1"}, {"abb", "1"}, {"aab", "2"},
		{"-ab", "2"}, {"aba", "3"}, {"ab-", "1"}, {"a/", "1"}, {"ab/", "1"}, {"/b", "0"},
	} {
		log := filepath.Join(t.TempDir(), "log")
		f := open(t, log)
		writers := map[rune]*Writer{}
		for i, name := range c.writers {
			if name == '/' { // b begins, and has written nothing
				if err := (&Writer{Path: log, UID: "b"}).Own(f); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if writers[name] == nil || i > 0 && rune(c.writers[i-1]) != name {
				writers[name] = &Writer{Path: log, UID: strings.Trim(string(name), "-")}
			}
			info, err := f.Stat()
			if err == nil {
				_, err = f.WriteString("x")
			}
			if err := errors.Join(err, writers[name].Note(f, info.Size(), time.Unix(int64(i), 0))); err != nil {
				t.Fatal(err)
			}
		}
		begin, err := Begin(f, log, "b")
		if got := fmt.Sprint(begin); err != nil || got != c.want {
			t.Errorf("%q: b begins at %s, want %s: %v", c.writers, got, c.want, err)
		}
	}
}

// The parts of a log have their time and the VM that wrote them, also where another VM of that name comes after. What
// was written before either is known has none, and a VM whose UID is no word is not known.
func TestParts(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	f := open(t, log)
	one, two, bad := &Writer{Path: log, UID: "u-1"}, &Writer{Path: log, UID: "u-2"}, &Writer{Path: log, UID: "x\n0 =u-1"}
	at := int64(0)
	for i, w := range []*Writer{nil, one, one, two, two, bad} {
		n, err := f.WriteString(strings.Repeat("x", i+1))
		if err == nil && w != nil {
			err = w.Note(f, at, time.Unix(int64(i), 0))
		}
		if at += int64(n); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(f, log)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for {
		p, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got += fmt.Sprintln(p.At, len(p.Data), p.Known, p.Time.Unix(), p.UID)
	}
	got = strings.ReplaceAll(got, fmt.Sprint(time.Time{}.Unix()), "-")
	want := "0 1 false - \n1 2 true 1 u-1\n3 3 true 2 u-1\n6 4 true 3 u-2\n10 5 true 4 u-2\n15 6 true 5 \n"
	if got != want {
		t.Errorf("parts\n%s, want\n%s", got, want)
	}
}
