package stdio

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
)

func logsAt(t *testing.T, most int64, files int) (*LogFile, []output) {
	t.Helper()
	l := &LogFile{Path: filepath.Join(t.TempDir(), "made", "vm.log"), MaxBytes: most, Files: files}
	st, err := Open("ns", "vm", URIs{Stdout: "file://" + l.Path}, l)
	if err != nil {
		t.Fatal(err)
	}
	exec, _, err := st.ForExec(State{Stdout: true}, filepath.Join(t.TempDir(), "exec"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	t.Cleanup(exec.Close)
	return l, []output{{file: st.stdout, log: st.log}, {file: st.stderr, log: st.log}, {file: exec.stdout, log: exec.log}}
}

// Several outputs of a woken VM share a log. No file is longer than it may be. No line is lost
// or cut while there are fewer files than are kept. All files are readable for their owner
// alone.
func TestLogRotates(t *testing.T) {
	const lines, most = 2000, 8 << 10
	l, sinks := logsAt(t, most, 100)
	var all sync.WaitGroup
	for i, s := range sinks {
		all.Go(func() {
			for n := range lines {
				if _, err := s.write(fmt.Appendf(nil, "output %d line %d\n", i, n)); err != nil {
					t.Errorf("output %d: %v", i, err)
				}
			}
		})
	}
	all.Wait()
	files, _ := os.ReadDir(filepath.Dir(l.Path))
	files = slices.DeleteFunc(files, os.DirEntry.IsDir) // of the times
	var text []byte
	for _, e := range files {
		info, err := e.Info()
		data, rerr := os.ReadFile(filepath.Join(filepath.Dir(l.Path), e.Name()))
		// Each output looks before it writes: two may do so at the same time.
		if err != nil || rerr != nil || info.Size() > most+int64(len(sinks))*30 || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %d bytes, %v, %v %v", e.Name(), info.Size(), info.Mode(), err, rerr)
		}
		text = append(text, data...)
	}
	if len(files) < 4 || len(files) >= l.Files {
		t.Errorf("%d files", len(files))
	}
	for i := range sinks {
		for n := range lines {
			if c := bytes.Count(text, fmt.Appendf(nil, "output %d line %d\n", i, n)); c != 1 {
				t.Fatalf("line %d of output %d is there %d times", n, i, c)
			}
		}
	}
	if info, err := os.Stat(filepath.Dir(l.Path)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", info.Mode(), err)
	}
}

// As many files are kept as the configuration says, the newest ones. A process that has the log
// open reads it to its end, and finds the rest under its name.
func TestLogKeepsTheNewest(t *testing.T) {
	for _, files := range []int{1, 2, 3} {
		l, sinks := logsAt(t, 10, files)
		reader, err := os.Open(l.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		for i := range 5 {
			if _, err := sinks[i%2].write(fmt.Appendf(nil, "number %d\n", i)); err != nil {
				t.Fatal(err)
			}
		}
		if first, err := io.ReadAll(reader); string(first) != "number 0\n" {
			t.Errorf("the reader has %q, %v", first, err)
		}
		for i := range 5 {
			data, err := os.ReadFile(l.name(i))
			if kept := i < files; kept != (err == nil) || kept && string(data) != fmt.Sprintf("number %d\n", 4-i) {
				t.Errorf("%d files, file %d: %q, %v", files, i, data, err)
			}
		}
	}
}

// A log that was removed is made again. A log of an earlier build loses its other readers. A
// link is not followed. What is no regular file is written to as it is.
func TestLogOfOtherKinds(t *testing.T) {
	l, sinks := logsAt(t, 0, 1)
	if err := os.Remove(l.Path); err != nil {
		t.Fatal(err)
	}
	for _, s := range sinks {
		if _, err := s.write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if data, err := os.ReadFile(l.Path); string(data) != "xxx" {
		t.Errorf("after a removal: %q, %v", data, err)
	}
	if err := os.Chmod(l.Path, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := l.open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("an old one: %v, %v", info.Mode(), err)
	}
	link := l.Path + "-link"
	if err := os.Symlink(l.Path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := (&LogFile{Path: link}).open(); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), link) {
		t.Errorf("a link: %v", err)
	}
	null := &LogFile{Path: os.DevNull, MaxBytes: 1, Files: 1}
	f, err = null.open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n, err := (output{file: f, log: null}).write([]byte("much")); n != 4 || err != nil {
		t.Errorf("a device: %d, %v", n, err)
	}
}
