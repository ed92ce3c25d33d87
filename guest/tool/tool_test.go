package tool

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/guesttool"
)

// A process of any name is read right from /proc, and lines that are none are refused.
func TestParseStat(t *testing.T) {
	line := "7 (a) (b c) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 1 0 1200 1000000 25 18446744073709551615 1 1 0"
	p, err := parseStat(line, 1000)
	if err != nil || p.Command != "[a) (b c]" || p.State != "S" || p.Parent != 1 || p.CPU != 2000 || p.Started != 1012 ||
		p.Memory != 25*uint64(os.Getpagesize()) {
		t.Errorf("%+v, %v", p, err)
	}
	for _, line := range []string{"", "7 (a", ") (", "7 (a) S 1", strings.Replace(line, " 150 ", " x ", 1)} {
		if p, err := parseStat(line, 0); err == nil {
			t.Errorf("%q = %+v", line, p)
		}
	}
}

// The list has the processes of the pid namespace with their arguments, and not the tool itself.
func TestTop(t *testing.T) {
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	all, err := top()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(p guesttool.Process) bool { return p.PID == child.Process.Pid })
	if i < 0 || all[i].Parent != os.Getpid() || all[i].UID != os.Getuid() || all[i].Started == 0 {
		t.Errorf("the child: %d in %+v", i, all)
	}
	if slices.ContainsFunc(all, func(p guesttool.Process) bool { return p.PID == os.Getpid() }) {
		t.Error("the list has the tool")
	}
}

// A tree goes out of one directory and into another by the tools alone; what cannot be has its class in the report.
func TestTools(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for _, d := range []string{from, to} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(from, "f"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	var stream, answer bytes.Buffer
	if r, err := run([]string{guesttool.Pack, from, "x"}, nil, &stream); err != nil || r.Result.Files != 1 {
		t.Fatalf("pack: %+v, %v", r, err)
	}
	// A pipe as stdin, as an exec has.
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(out, &stream); _ = out.Close() }()
	if r, err := run([]string{guesttool.Unpack, to, "x", ""}, in, nil); err != nil || r.Result.Bytes != 4 {
		t.Fatalf("unpack: %+v, %v", r, err)
	}
	if data, err := os.ReadFile(filepath.Join(to, "x/f")); err != nil || string(data) != "text" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := run([]string{guesttool.Stat, to + "/x/f"}, nil, &answer); err != nil ||
		!strings.Contains(answer.String(), `"size":4`) {
		t.Errorf("stat: %s, %v", answer.String(), err)
	}
	for class, args := range map[error][]string{
		errdefs.ErrNotFound:        {guesttool.Pack, dir + "/none", "x"},
		errdefs.ErrInvalidArgument: {"dance"},
	} {
		_, err := run(args, nil, io.Discard)
		if err == nil {
			t.Errorf("%v: no error", args)
			continue
		}
		if got := guesttool.Failed(err).Err(); guesttool.Failed(got).Class != guesttool.Failed(class).Class ||
			guesttool.Failed(class).Class == "" {
			t.Errorf("%v: %v, want class %v", args, got, class)
		}
	}
}
