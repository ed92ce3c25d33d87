package client

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/logtimes"
)

// A log that is rotated is read in its order, whole and once, also while it is being followed.
func TestLogReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var out strings.Builder
	l := &logReader{path: path, out: &out}
	defer l.close()
	if err := l.begin(-1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no log: %v", err)
	}
	write := func(name, text string) {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	rotate := func() {
		for i := 8; i > 0; i-- {
			_ = os.Rename(fmt.Sprintf("%s.%d", path, i), fmt.Sprintf("%s.%d", path, i+1))
		}
		if err := os.Rename(path, path+".1"); err != nil {
			t.Fatal(err)
		}
	}
	look := func(what, want string) {
		t.Helper()
		out.Reset()
		if err := l.more(); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v; want %q", what, out.String(), err, want)
		}
	}
	look("none yet", "")
	write(path+".2", "1\n")
	write(path+".1", "2\n")
	write(path, "3\n")
	look("all", "1\n2\n3\n")
	write(path, "4\n")
	look("more", "4\n")
	write(path, "5\n")
	rotate()
	look("between rename and write", "")
	write(path, "6\n")
	rotate()
	write(path, "7\n")
	look("two rotations", "5\n6\n7\n")
	look("nothing", "")
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	look("emptied", "")
	write(path, "8\n")
	look("after", "8\n")
}

// The last lines are found over files, with and without a line's end, and in blocks of any length.
func TestLogTail(t *testing.T) {
	long := strings.Repeat("x", tailBlock-1)
	for _, c := range []struct {
		old, text string
		tail      int
		want      string
	}{
		{"", "1\n2\n3\n", 2, "2\n3\n"}, {"", "1\n2\n3", 2, "2\n3"}, {"", "1\n2\n", 0, ""}, {"", "1\n2\n", 9, "1\n2\n"},
		{"0\n1\n", "2\n3\n", 3, "1\n2\n3\n"}, {"0\n1\n", "2\n3\n", 2, "2\n3\n"}, {"0\n1\n", "", 1, "1\n"},
		{"", "\n\n\n", 2, "\n\n"}, {"", "a\n" + long + "\n" + long + "\n", 2, long + "\n" + long + "\n"},
	} {
		path := filepath.Join(t.TempDir(), "log")
		if err := errors.Join(os.WriteFile(path, []byte(c.text), 0o600),
			os.WriteFile(path+".1", []byte(c.old), 0o600)); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		l := &logReader{path: path, out: &out}
		if err := l.begin(c.tail); err != nil || out.String() != c.want {
			t.Errorf("%q %.20q, last %d: %.40q, %v; want %.40q", c.old, c.text, c.tail, out.String(), err, c.want)
		}
		l.close()
	}
}

// The log of a VM that came from another node is found: containerd shows a fifo of its shim as its stdout, and its
// container has no label. Another fifo is a client's.
func TestOutputOf(t *testing.T) {
	cfg := config.Default()
	cfg.StdioURI = "file:///log/{namespace}-{id}.log"
	c := New()
	c.load = func() (*config.Config, error) { return cfg, nil }
	vm := &nodev1.VM{Namespace: "other", Id: "web"}
	const own, label = "file:///log/other-web.log", "binary:///logger"
	for _, o := range []struct{ stdout, label, want string }{
		{"", "", own}, {cfg.VMRunDir("other", "web") + "/task-stdout", "", own},
		{cfg.VMRunDir("other", "web") + "/task-stdout", label, label}, {"", label, label},
		{"/run/containerd/fifo/1/web-stdout", "", "/run/containerd/fifo/1/web-stdout"},
		{cfg.VMRunDir("default", "web") + "/task-stdout", "", cfg.VMRunDir("default", "web") + "/task-stdout"},
		{"file:///named", label, "file:///named"},
	} {
		if uri, err := c.outputOf(vm, o.stdout, o.label); err != nil || uri != o.want {
			t.Errorf("stdout %q, label %q: %q, %v; want %q", o.stdout, o.label, uri, err, o.want)
		}
	}
}

// A VM whose name an earlier one had shows what it wrote itself: over files, of the last lines, with times, and while
// it is followed. Where it is not known which VM it is, all is shown.
func TestLogOfANameThatComesAgain(t *testing.T) {
	for _, c := range []struct {
		uid, wrote string // a VM and its line each; / is a rotation, and a lone uid begins
		o          LogOptions
		tail       int
		want       string
	}{
		{"new", "old:1 old:2", LogOptions{}, -1, "|9"},
		{"new", "old:1 old:2 new", LogOptions{}, -1, "|9"},
		{"new", "old:1 old:2 new:3", LogOptions{}, -1, "3|9"},
		{"new", "old:1 old:2 new:3 new:4", LogOptions{}, 9, "3,4|9"},
		{"new", "old:1 old:2 new:3 new:4", LogOptions{}, 1, "4|9"},
		{"new", "old:1 / old:2 new:3 / new:4", LogOptions{}, -1, "3,4|9"},
		{"new", "old:1 / old:2 new:3 / new:4", LogOptions{}, 9, "3,4|9"},
		{"new", "old:1 / old:2 / new:3", LogOptions{}, 5, "3|9"},
		{"new", "old:1 / old:2 / new:3", LogOptions{Until: time.Unix(5, 0)}, -1, "3|"},
		{"new", "old:1 new:2 new:3", LogOptions{Since: time.Unix(3, 0)}, -1, "3|9"},
		{"", "old:1 new:2", LogOptions{}, -1, "1,2|9"},
		{"new", "new:1 new:2", LogOptions{}, 1, "2|9"},
	} {
		l := newTimedLog(t)
		for _, word := range strings.Fields(c.wrote) {
			uid, text, wrote := strings.Cut(word, ":")
			w := &logtimes.Writer{Path: l.path, UID: uid}
			var err error
			switch {
			case word == "/":
				l.next()
			case wrote:
				at, serr := l.file.Seek(0, io.SeekEnd)
				_, werr := l.file.WriteString(text + "\n")
				err = errors.Join(serr, werr, w.Note(l.file, at, time.Unix(int64(text[0]-'0'), 0)))
			default:
				err = w.Own(l.file)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		var out strings.Builder
		r := &logReader{path: l.path, out: &out, uid: c.uid, times: newTimedLines("web", c.o)}
		err := r.begin(c.tail)
		shown := strings.ReplaceAll(strings.TrimSuffix(out.String(), "\n"), "\n", ",")
		out.Reset()
		l.write(9, "9\n")
		if err = errors.Join(err, r.more()); err != nil || shown+"|"+strings.TrimSpace(out.String()) != c.want {
			t.Errorf("%+v: %q then %q, %v", c, shown, out.String(), err)
		}
		if r.only != strings.HasPrefix(c.want, "|") {
			t.Errorf("%+v: only the other's: %v", c, r.only)
		}
		r.close()
	}
}
