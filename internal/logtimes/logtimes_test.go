package logtimes

import (
	"errors"
	"fmt"
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

// Each byte has the time of the write that it came with. So it is after a rotation, and after another output has
// written out of turn. A torn line, and bytes of before the first time, say nothing.
func TestTimes(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	f := open(t, log)
	for start, at := range map[int64]int64{10: 1, 30: 3, 20: 2} {
		if err := Note(f, log, start, time.Unix(at, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(log, log+".1"); err != nil {
		t.Fatal(err)
	}
	next := open(t, log)
	if err := Note(next, log, 0, time.Unix(4, 0)); err != nil {
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
		if at, ok := marks.At(offset); !ok || at.Unix() != want {
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
	if err := errors.Join(Note(f, log, 0, time.Now()), Note(g, other, 0, time.Now()), Sweep(log)); err != nil {
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
	for i := range int64(bytes) {
		if err := Note(f, log, i, time.Now()); err != nil {
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
	if err := Note(f, log, 0, time.Unix(7, 0)); err != nil || size() != int64(len(fmt.Sprintln(0, int64(7e9)))) {
		t.Errorf("emptied: %v, %d bytes", err, size())
	}
}
