//go:build integration

package nerdctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/integration/images"
)

// The commands on one container, from run to rm.
func (s *site) testCommands(t *testing.T) {
	r := s.start(t, strings.NewReader("to the guest"), "run", "--rm", "-i", "--runtime", runtimeName, images.Busybox,
		"sh", "-c", "cat; echo; echo errors >&2; exit 7").wait(t)
	if r.code != 7 || r.out != "to the guest\n" || !strings.HasPrefix(r.errs, "errors\n") {
		t.Errorf("run -i: %+v", r)
	}
	s.detached(t, "web", "-p", "8080:80", "-p", "127.0.0.1:8081:81", images.Busybox, "sh", "-c",
		"trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done")
	t.Run("exec", s.testExec)
	t.Run("logs", s.testLogs)
	t.Run("figures", s.testFigures)
	t.Run("ports", s.testPorts)
	t.Run("pause", s.testPause)
	t.Run("cp", s.testCopy)
	t.Run("no two share a VM", func(t *testing.T) {
		for flag, word := range map[string]string{"--net": "eth0", "--pid": "linux.namespaces pid"} {
			if r := s.nerdctl(t, "run", "--rm", "--runtime", runtimeName, flag, "container:web", images.Busybox,
				"true"); r.code == 0 || !strings.Contains(r.errs, word) {
				t.Errorf("%s container:web: %+v", flag, r)
			}
		}
	})
	t.Run("update", func(t *testing.T) {
		s.ok(t, "update", "--memory", "120m", "--pids-limit", "70", "web")
		if got := s.sh(t, "web", "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max"); got != "125829120\n70\n" {
			t.Errorf("limits in the guest: %q", got)
		}
	})
	s.testEnds(t)
}

// testEnds ends and starts the container in every way that there is.
func (s *site) testEnds(t *testing.T) {
	t.Run("restart", func(t *testing.T) {
		boot := s.sh(t, "web", "cat /proc/sys/kernel/random/boot_id")
		s.ok(t, "restart", "web")
		if again := s.sh(t, "web", "cat /proc/sys/kernel/random/boot_id"); again == boot {
			t.Error("the same boot after a restart")
		}
		eventually(t, "logs of both lives", func(context.Context) error {
			if got := s.ok(t, "logs", "web"); got != "up\nfollowed\nbye\nup\n" {
				return fmt.Errorf("logs %q", got)
			}
			return nil
		})
		s.testPorts(t)
	})
	t.Run("kill and wait", func(t *testing.T) {
		waiter, follow := s.start(t, nil, "wait", "web"), s.start(t, nil, "logs", "-f", "web")
		follow.out.says(t, "up\n")
		s.ok(t, "kill", "-s", "KILL", "web")
		if r := waiter.wait(t); r.code != 0 || r.out != "137\n" {
			t.Errorf("wait: %+v", r)
		}
		if r := follow.wait(t); r.code != 0 {
			t.Errorf("logs -f after the end: %+v", r)
		}
		if got := s.field(t, "web", "{{.State.Status}} {{.State.ExitCode}}"); got != "exited 137" {
			t.Errorf("after kill: %s", got)
		}
	})
	t.Run("start and rm", func(t *testing.T) {
		s.ok(t, "start", "web")
		if r := s.nerdctl(t, "rm", "web"); r.code == 0 {
			t.Error("a container that runs was removed without -f")
		}
		s.ok(t, "rm", "-f", "web")
		if got := s.ok(t, "ps", "-aq"); got != "" {
			t.Errorf("after rm -f: %q", got)
		}
	})
}

func (s *site) testExec(t *testing.T) {
	got := s.ok(t, "exec", "-e", "A=b c", "-w", "/tmp", "-u", "guest", "web", "sh", "-c",
		`echo "$A $PWD $(id -un) $(id -gn)"`)
	if got != "b c /tmp guest guest\n" {
		t.Errorf("exec -e -w -u: %q", got)
	}
	if got := s.sh(t, "web", "grep Seccomp: /proc/self/status; ulimit -Hn"); got != "Seccomp:\t2\n524288\n" {
		t.Errorf("nerdctl's seccomp profile and the limit of open files: %q", got)
	}
	if r := s.start(t, strings.NewReader("through stdin"), "exec", "-i", "web", "cat").wait(t); r.out != "through stdin" {
		t.Errorf("exec -i: %+v", r)
	}
	// nerdctl itself says the code in its message and exits with 1.
	if r := s.nerdctl(t, "exec", "web", "sh", "-c", "exit 7"); !strings.Contains(r.errs, "exit code 7") {
		t.Errorf("exit code of exec: %+v", r)
	}
	if r := s.nerdctl(t, "exec", "web", "no-such-program"); r.code == 0 || !strings.Contains(r.errs, "no-such-program") {
		t.Errorf("exec of what is not there: %+v", r)
	}
	s.ok(t, "exec", "-d", "web", "sh", "-c", "echo done >/tmp/detached")
	eventually(t, "exec -d", func(context.Context) error {
		if r := s.nerdctl(t, "exec", "web", "cat", "/tmp/detached"); r.out != "done\n" {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
}

func (s *site) testLogs(t *testing.T) {
	eventually(t, "logs", func(context.Context) error {
		if got := s.ok(t, "logs", "web"); got != "up\n" {
			return fmt.Errorf("logs %q", got)
		}
		return nil
	})
	follow := s.start(t, nil, "logs", "-f", "web")
	follow.out.says(t, "up\n")
	s.sh(t, "web", "echo followed >/proc/1/fd/1")
	follow.out.says(t, "followed\n")
}

func (s *site) testFigures(t *testing.T) {
	f := strings.Split(strings.TrimSpace(s.ok(t, "stats", "--no-stream", "--format",
		"{{.Name}}|{{.MemUsage}}|{{.NetIO}}|{{.BlockIO}}|{{.PIDs}}", "web")), "|")
	if len(f) != 5 || f[0] != "web" || !strings.HasSuffix(f[1], "MiB / 512MiB") || strings.HasPrefix(f[1], "0") ||
		!strings.Contains(f[3], "B / ") || f[4] == "0" {
		t.Errorf("stats %q", f)
	}
	if got := s.ok(t, "ps", "--format", "{{.Names}} {{.Status}} {{.Ports}}"); got != "web Up 0.0.0.0:8080->80/tcp, "+
		"127.0.0.1:8081->81/tcp\n" {
		t.Errorf("ps %q", got)
	}
	if got := s.field(t, "web", "{{.State.Status}} {{.HostConfig.Runtime}} {{.Platform}}"); got != "running "+
		runtimeName+" linux" {
		t.Errorf("inspect %q", got)
	}
	// The host has one process of the container: that which stands for it.
	if lines := strings.Split(strings.TrimSpace(s.ok(t, "top", "web")), "\n"); len(lines) != 2 ||
		!strings.HasSuffix(lines[1], "holder") {
		t.Errorf("top %q", lines)
	}
}

// testPorts: what -p publishes is reached from the wire by the node's address, and by the
// node itself.
func (s *site) testPorts(t *testing.T) {
	if got := s.ok(t, "port", "web"); got != "80/tcp -> 0.0.0.0:8080\n81/tcp -> 127.0.0.1:8081\n" {
		t.Errorf("port %q", got)
	}
	s.ok(t, "exec", "-d", "web", "sh", "-c", "nc -ll -p 80 -e echo eighty & nc -ll -p 81 -e echo eighty-one")
	eventually(t, "reach port 8080 from the wire", func(ctx context.Context) error {
		conn, err := s.h.Dial(ctx, "tcp", net.JoinHostPort(s.Address, "8080"))
		if err != nil {
			return err
		}
		defer conn.Close()
		return answers(conn, "eighty\n")
	})
	eventually(t, "reach port 8081 on the node", func(context.Context) error {
		return s.Enter(func() error {
			conn, err := net.Dial("tcp", "127.0.0.1:8081")
			if err != nil {
				return err
			}
			defer conn.Close()
			return answers(conn, "eighty-one\n")
		})
	})
}

func answers(conn net.Conn, want string) error {
	if err := conn.SetDeadline(time.Now().Add(stepTimeout)); err != nil {
		return err
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		return fmt.Errorf("it says %q: %w", got, err)
	}
	return nil
}

func (s *site) testPause(t *testing.T) {
	s.ok(t, "pause", "web")
	if got := s.field(t, "web", "{{.State.Status}}"); got != "paused" {
		t.Errorf("status %s", got)
	}
	s.ok(t, "unpause", "web")
	if got := s.field(t, "web", "{{.State.Status}}"); got != "running" {
		t.Errorf("status %s", got)
	}
	s.ok(t, "exec", "web", "true")
}

// testCopy: nerdctl cp looks for a container's files in /proc/PID/root, where a VM has
// none: it fails, and touches no file of the host. What it is for works by exec and tar.
func (s *site) testCopy(t *testing.T) {
	dir := t.TempDir()
	mine := filepath.Join(dir, "mine")
	if err := os.WriteFile(mine, []byte("mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	host := filepath.Join(t.TempDir(), "host") // a path that the host has and the guest has not
	if err := os.WriteFile(host, []byte("the host's\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"cp", mine, "web:" + host}, {"cp", mine, "web:/tmp/"}, {"cp", mine, "web:/"},
		{"cp", "web:" + host, filepath.Join(dir, "got")}, {"cp", "web:/etc/passwd", dir}} {
		if r := s.nerdctl(t, args...); r.code == 0 {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if data, err := os.ReadFile(host); err != nil || string(data) != "the host's\n" {
		t.Errorf("the file of the host is %q, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "passwd")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file of the host was copied: %v", err)
	}
	archive, err := exec.Command("tar", "-C", dir, "-cf", "-", "mine").Output()
	if err != nil {
		t.Fatal(err)
	}
	if r := s.start(t, strings.NewReader(string(archive)), "exec", "-i", "web", "busybox", "tar", "-C", "/tmp", "-xf",
		"-").wait(t); r.code != 0 {
		t.Errorf("tar into the container: %+v", r)
	}
	if diff := cmp.Diff("mine\n", s.sh(t, "web", "cat /tmp/mine")); diff != "" {
		t.Error(diff)
	}
}
