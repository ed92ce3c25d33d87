//go:build integration

package day

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// goneBound is how long a verb may take to end once its VM is gone, or it was interrupted.
const goneBound = 20 * time.Second

// written is what a program has written so far.
type written struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *written) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// running is a godwit that runs.
type running struct {
	cmd       *exec.Cmd
	out, errs written
	over      chan struct{}
}

// begin starts a godwit, and waits until it is at work.
func (s *site) begin(l longVerb) *running {
	s.Helper()
	r := &running{cmd: s.Command(s.Context(), "godwit", l.args...), over: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.errs
	if err := s.Enter(r.cmd.Start); err != nil {
		s.Fatal(err)
	}
	go func() {
		defer close(r.over)
		_ = r.cmd.Wait()
	}()
	s.eventually(l.name+" works", func() error {
		select {
		case <-r.over:
			s.Fatalf("%s has ended: %d, %s", l.name, r.cmd.ProcessState.ExitCode(), r.errs.String())
		default:
		}
		return l.works(r)
	})
	return r
}

// ends wants a godwit to end soon, and answers its exit code.
func (r *running) ends(s *site, name string) int {
	s.Helper()
	select {
	case <-r.over:
	case <-time.After(harness.Slow(goneBound)):
		s.Errorf("%s goes on: %q", name, r.errs.String())
		_ = r.cmd.Process.Kill()
		<-r.over
	}
	return r.cmd.ProcessState.ExitCode()
}

// longVerb is one that goes on until its VM is gone.
type longVerb struct {
	name  string
	args  []string
	works func(*running) error
	code  int // of its end when its VM is deleted
}

// longVerbs are an exec, copies both ways of a file that is large, and a log that is followed.
func (s *site) longVerbs() []longVerb {
	s.Helper()
	in, out := filepath.Join(s.dir, "large"), filepath.Join(s.dir, "taken")
	if err := errors.Join(os.WriteFile(in, nil, 0o600), os.Truncate(in, 4<<30), os.MkdirAll(out, 0o700)); err != nil {
		s.Fatal(err)
	}
	s.sh("mkdir -p /given; truncate -s 8G /large")
	says := func(word string) func(*running) error {
		return func(r *running) error {
			if !strings.Contains(r.out.String(), word) {
				return fmt.Errorf("it has said %q", r.out.String())
			}
			return nil
		}
	}
	return []longVerb{
		{"exec", []string{"exec", "web", "sh", "-c", "echo up; exec sleep 100000"}, says("up\n"), 125},
		{"logs", []string{"logs", "-f", "web"}, says("line 0\n"), 3},
		{"cp out", []string{"cp", "web:/large", out + "/x"}, func(*running) error {
			files, err := os.ReadDir(out)
			if err == nil && len(files) == 0 {
				err = fs.ErrNotExist
			}
			return err
		}, 5},
		{"cp in", []string{"cp", in, "web:/given/x"}, func(*running) error {
			if s.sh("ls -a /given | grep godwit || true") == "" {
				return fs.ErrNotExist
			}
			return nil
		}, 5},
	}
}

// half wants no file of a copy to be there under the name that the whole one would have.
func (s *site) half() {
	s.Helper()
	if _, err := os.Lstat(filepath.Join(s.dir, "taken", "x")); !errors.Is(err, fs.ErrNotExist) {
		s.Errorf("half a file is on the host: %v", err)
	}
}

// Verbs that go on while their VM runs end soon when they are interrupted, and when it is deleted: with an error that
// says so, and a code. Neither leaves a process in the guest, or half a file under the name of the whole one.
func TestGone(t *testing.T) {
	s := newSite(t)
	verbs := s.longVerbs()
	for _, l := range verbs {
		r := s.begin(l)
		if err := r.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if code := r.ends(s, l.name); code != 130 {
			t.Errorf("%s was interrupted: code %d, %s", l.name, code, r.errs.String())
		}
		t.Logf("%s, interrupted: %s", l.name, r.errs.String())
	}
	s.eventually("nothing is left in the guest", func() error {
		if all := strings.TrimSpace(s.ok("top", "web")); strings.Count(all, "\n") > 2 || strings.Contains(all, "100000") {
			return fmt.Errorf("it runs\n%s", all)
		}
		return nil
	})
	s.half()
	if left := s.sh("ls -A /given"); left != "" {
		t.Errorf("left in the guest: %s", left)
	}
	if left, err := os.ReadDir(filepath.Join(s.dir, "taken")); err != nil || len(left) > 0 {
		t.Errorf("left on the host: %v, %v", left, err)
	}
	var at []*running
	for _, l := range verbs {
		at = append(at, s.begin(l))
	}
	s.ok("rm", "-f", "web")
	for i, l := range verbs {
		code := at[i].ends(s, l.name)
		if errs := at[i].errs.String(); code != l.code || !strings.Contains(errs, "web") {
			t.Errorf("%s of a VM that was deleted: code %d, want %d: %s", l.name, code, l.code, errs)
		}
		t.Logf("%s, deleted: %d %s", l.name, code, at[i].errs.String())
	}
	s.half()
	// A VM that has the name now shows nothing of the one that had it.
	s.ok("run", "-d", "--name", "web", images.Busybox, "sh", "-c", "echo new; exec sleep 100000")
	s.eventually("the log of the name", func() error {
		if log := s.ok("logs", "web"); log != "new\n" {
			return fmt.Errorf("it is %.200q", log)
		}
		return nil
	})
}
