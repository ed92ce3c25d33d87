//go:build integration

package day

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
)

// Commands run in a VM as by docker exec: streams, environment, directory, user, exit codes, a terminal with its size,
// and signals. Its processes are listed, and its log is read and followed over a sleep.
func TestCommands(t *testing.T) {
	s := newSite(t)
	t.Run("exec", s.testExec)
	t.Run("terminal", s.testTerminal)
	t.Run("top", func(t *testing.T) {
		var list struct {
			Processes []struct {
				PID     int
				User    string
				Command string
			}
		}
		if err := json.Unmarshal([]byte(s.ok("top", "-o", "json", "web")), &list); err != nil || len(list.Processes) == 0 ||
			list.Processes[0].PID != 1 || list.Processes[0].User != "root" ||
			!strings.HasPrefix(list.Processes[0].Command, "sh -c i=0;") {
			t.Errorf("top: %+v, %v", list, err)
		}
		if out := s.ok("top", "web"); !strings.Contains(out, "sh -c i=0;") {
			t.Errorf("top: %s", out)
		}
	})
	t.Run("figures", s.testFigures)
	t.Run("logs", s.testLogs)
}

func (s *site) testFigures(t *testing.T) {
	s = s.within(t)
	var stats struct {
		VMs []struct {
			VM                    string
			Memory, RAM, Resident uint64
			Pids, CPUUsec         uint64
			CPUPercent            float64
		}
	}
	if err := json.Unmarshal([]byte(s.ok("stats", "--no-stream", "-o", "json")), &stats); err != nil ||
		len(stats.VMs) != 1 || stats.VMs[0].VM != "default/web" || stats.VMs[0].Memory == 0 || stats.VMs[0].Pids == 0 ||
		stats.VMs[0].CPUUsec == 0 || stats.VMs[0].Resident == 0 || stats.VMs[0].Resident > stats.VMs[0].RAM {
		t.Errorf("stats: %+v, %v", stats, err)
	}
	if out := s.ok("stats", "web"); !strings.Contains(out, "default/web") || strings.Contains(out, "\x1b") {
		t.Errorf("stats: %q", out)
	}
	var all []struct {
		ID        string
		VM        struct{ Status string }
		Container struct {
			Name string
			Spec struct{ Process struct{ Args []string } }
		}
		Task struct{ Status string }
	}
	if err := json.Unmarshal([]byte(s.ok("inspect", "web")), &all); err != nil || len(all) != 1 || all[0].ID != "web" ||
		all[0].VM.Status != "running" || all[0].Container.Name != "web" || all[0].Task.Status != "running" ||
		len(all[0].Container.Spec.Process.Args) != 3 {
		t.Errorf("inspect: %+v, %v", all, err)
	}
	s.fails(3, "", "inspect", "nowhere")
}

func (s *site) testExec(t *testing.T) {
	s = s.within(t)
	if r := s.run("to the guest", "exec", "-i", "-e", "A=b", "-e", "NOT_HERE", "-w", "/tmp", "web", "sh", "-c",
		"cat; echo; echo $A $PWD $(id -u) >&2; exit 7"); r.code != 7 || r.out != "to the guest\n" ||
		r.errs != "b /tmp 0\n" {
		t.Errorf("exec -i: %+v", r)
	}
	for user, want := range map[string]string{"12:34": "12:34\n", "nobody": "65534:65534\n"} {
		if r := s.run("", "exec", "-u", user, "web", "sh", "-c", "echo $(id -u):$(id -g)"); r.out != want {
			if user == "nobody" && r.code == 125 && strings.Contains(r.errs, "name one of its /etc/passwd") {
				continue // the image has no such file
			}
			t.Errorf("exec -u %s: %+v", user, r)
		}
	}
	for code, args := range map[int][]string{
		127: {"web", "no-such-command"}, 126: {"web", "/etc"}, 125: {"nowhere", "true"}, 0: {"web", "true"},
		1: {"web", "false"},
	} {
		if r := s.run("", append([]string{"exec"}, args...)...); r.code != code {
			t.Errorf("exec %v: %+v, want code %d", args, r, code)
		}
	}
	s.fails(125, "write it from the root on", "exec", "-w", "tmp", "web", "true")
	s.fails(4, "godwit logs -f", "attach", "web")
	if out := s.ok("exec", "-d", "web", "sh", "-c", "echo here >/tmp/detached"); out != "" {
		t.Errorf("exec -d says %q", out)
	}
	s.eventually("what a detached command writes", func() error {
		if r := s.run("", "exec", "web", "cat", "/tmp/detached"); r.out != "here\n" {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
}

// within is the site in a test below.
func (s *site) within(t *testing.T) *site {
	own := *s
	own.T = t
	return &own
}

func (s *site) eventually(what string, f func() error) {
	s.Helper()
	bound := harness.Slow(time.Minute)
	if err := harness.Poll(s.Context(), bound, func(context.Context) error { return f() }); err != nil {
		s.Errorf("%s: %v", what, err)
	}
}

// A shell on a terminal has its size, hears of changes, and Ctrl-C ends what runs in it.
func (s *site) testTerminal(t *testing.T) {
	s = s.within(t)
	master, slave, err := harness.OpenPTY()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	size := func(rows, columns uint16) {
		now := &unix.Winsize{Row: rows, Col: columns}
		if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, now); err != nil {
			t.Fatal(err)
		}
	}
	size(31, 77)
	cmd := s.Command(t.Context(), "godwit", "exec", "-it", "web", "sh")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.Enter(cmd.Start); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	defer end(cmd)
	heard := make(chan string, 1)
	says := make(chan string, 1024)
	go read(master, says)
	said := ""
	types := func(text, want string) {
		t.Helper()
		if _, err := master.WriteString(text); err != nil {
			t.Fatal(err)
		}
		all, timeout := "", time.After(harness.Slow(time.Minute))
		for !strings.Contains(all, want) {
			select {
			case more, open := <-says:
				said += more
				if all += more; !open {
					t.Fatalf("after %q: the end, %q", text, all)
				}
			case <-timeout:
				t.Fatalf("after %q: %q, want %q", text, all, want)
			}
		}
	}
	types("stty size\n", "31 77\r")
	size(20, 50)
	// The line of the answer ends before more is typed: the echo of that could stand in it.
	types("while ! stty size | grep '20 50'; do sleep 0.1; done; echo resi''zed\n", "resized\r")
	// The program itself says that it runs: before that the shell may have the terminal still, and Ctrl-C is the shell's.
	types("sh -c 'echo beg\"\"un; exec sleep 1000'; echo went''on $?\n", "begun")
	types("\x03", "/ #")
	go func() {
		all := ""
		for more := range says {
			all += more
		}
		heard <- all
	}()
	if _, err := master.WriteString("exit 9\n"); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	rest := <-heard
	if code := cmd.ProcessState.ExitCode(); code != 9 {
		t.Errorf("exit code %d, %q", code, rest)
	}
	for _, line := range []string{"31 77", "20 50", "resized", "begun"} { // the shell itself writes "\r\n" where it wraps
		if !strings.Contains(said+rest, line+"\r\n") || strings.Contains(said+rest, line+"\r\r\n") {
			t.Errorf("the line %q has another end: %q", line, said+rest)
		}
	}
}

// end kills a command of the node and waits for it: the node is gone only after all its processes.
func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func read(from *os.File, says chan<- string) {
	defer close(says)
	for buf := make([]byte, 4096); ; {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		says <- string(buf[:n])
	}
}

// The log of a VM is in order over a sleep and a wake, without a gap, also for who follows it.
// testLogTimes checks that lines which come each second have times that say so.
func (s *site) testLogTimes(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(s.ok("logs", "-t", "web")), "\n")
	var before time.Time
	for i, line := range lines {
		stamp, text, _ := strings.Cut(line, " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil || text != fmt.Sprintf("line %d", i) || at.Before(before) {
			t.Errorf("-t: line %d: %q", i, line)
		}
		before = at
	}
	third, _, _ := strings.Cut(lines[2], " ")
	if out := s.ok("logs", "--since", third, "--until", third, "web"); out != "line 2\n" {
		t.Errorf("of one time: %q", out)
	}
	s.fails(2, "--since", "logs", "--since", "lately", "web")
	if out := s.ok("logs", "--since", "-1h", "web"); out != "" {
		t.Errorf("of the future: %q", out)
	}
}

func (s *site) testLogs(t *testing.T) {
	s = s.within(t)
	all := strings.Split(strings.TrimSpace(s.ok("logs", "web")), "\n")
	if len(all) < 3 || all[0] != "line 0" || all[2] != "line 2" {
		t.Fatalf("logs: %q", all)
	}
	if tail := strings.Split(strings.TrimSpace(s.ok("logs", "--tail", "2", "web")), "\n"); len(tail) != 2 {
		t.Errorf("--tail 2: %q", tail)
	}
	s.fails(2, "write a number of lines", "logs", "--tail", "few", "web")
	s.testLogTimes(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out strings.Builder
	follow := s.Command(ctx, "godwit", "logs", "-f", "web")
	pipe, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Enter(follow.Start); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1024)
	go read(pipe.(*os.File), lines)
	defer end(follow)
	s.ok("hibernate", "web")
	s.fails(4, "godwit wake", "cp", "web:/etc", s.dir+"/x")
	s.fails(125, "godwit wake", "exec", "web", "true")
	slept := len(strings.Split(strings.TrimSpace(s.ok("logs", "web")), "\n"))
	s.ok("wake", "web")
	timeout := time.After(harness.Slow(2 * time.Minute))
	for strings.Count(out.String(), "\n") < slept+3 {
		select {
		case text, open := <-lines:
			if out.WriteString(text); !open {
				t.Fatalf("logs -f has ended: %q", out.String())
			}
		case <-timeout:
			t.Fatalf("logs -f after the wake: %q", out.String())
		}
	}
	for i, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		if line != fmt.Sprintf("line %d", i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	cancel()
	_ = follow.Wait()
	if now := s.ok("logs", "web"); !strings.HasPrefix(now, out.String()) {
		t.Errorf("logs and logs -f differ: %q", now)
	}
}
