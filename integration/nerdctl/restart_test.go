//go:build integration

package nerdctl

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/images"
)

// stopSeconds is how long a guest may take for its TERM. One that does not get it ends with 137.
const stopSeconds = "120"

const countLabel = "containerd.io/restart.count"

// count is how often the restart monitor has started a container.
func (s *site) count(t *testing.T, name string) int {
	t.Helper()
	n, err := strconv.Atoi(s.field(t, name, fmt.Sprintf("{{index .Config.Labels %q}}", countLabel)))
	if err != nil {
		return 0 // none yet
	}
	return n
}

// sentinel is a container that can never start: each round of the restart monitor counts
// one more try of it, without a VM.
func (s *site) sentinel(t *testing.T) {
	t.Helper()
	s.Ctr(t, "containers", "create", "--runtime", runtimeName, "--annotation", "godwit.dev/vcpus=0",
		"--label", "containerd.io/restart.status=running", "--label", "containerd.io/restart.policy=always", images.Busybox,
		"sentinel")
	t.Cleanup(func() {
		if _, err := s.RunCtr(context.WithoutCancel(t.Context()), "containers", "rm", "sentinel"); err != nil {
			t.Error(err)
		}
	})
}

// rounds waits until the monitor has looked at all containers at least once from start to
// end: the second try after now belongs to a round that began after now.
func (s *site) rounds(t *testing.T) {
	t.Helper()
	first := s.tries(t)
	eventually(t, "two rounds of the restart monitor", func(context.Context) error {
		if n := s.tries(t); n < first+2 {
			return fmt.Errorf("it has tried %d times, %d before", n, first)
		}
		return nil
	})
}

func (s *site) tries(t *testing.T) int {
	t.Helper()
	for _, word := range strings.FieldsFunc(s.Ctr(t, "containers", "info", "sentinel"), func(r rune) bool {
		return r == ',' || r == '\n'
	}) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(word), fmt.Sprintf("%q: ", countLabel)); ok {
			n, err := strconv.Atoi(strings.Trim(value, `"`))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// on-failure:1 starts a container that failed once more and no third time; unless-stopped
// leaves one alone that was stopped.
func (s *site) testRestart(t *testing.T) {
	s.sentinel(t)
	s.detached(t, "failing", "--restart", "on-failure:1", images.Busybox, "sh", "-c", "echo life; exit 3")
	s.detached(t, "stopped", "--restart", "unless-stopped", images.Busybox, "sh", "-c",
		"trap 'exit 0' TERM; echo life; while :; do sleep 0.1; done")
	eventually(t, "the second life", func(context.Context) error {
		if out := s.ok(t, "logs", "failing"); out != "life\nlife\n" {
			return fmt.Errorf("logs %q", out)
		}
		return nil
	})
	eventually(t, "the shell has its trap", func(context.Context) error {
		if out := s.ok(t, "logs", "stopped"); out != "life\n" {
			return fmt.Errorf("logs %q", out)
		}
		return nil
	})
	// Longer than its 10 s, after which it kills: a guest on a busy host may take that long to start the next sleep.
	s.ok(t, "stop", "--time", stopSeconds, "stopped")
	// The monitor also counts a try that came too early, while the first task was being made.
	tried := s.count(t, "stopped")
	s.rounds(t)
	for name, want := range map[string]string{"failing": "exited 3 1", "stopped": fmt.Sprintf("exited 0 %d", tried)} {
		if got := fmt.Sprintf("%s %d", s.field(t, name, "{{.State.Status}} {{.State.ExitCode}}"),
			s.count(t, name)); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// ask sends one command and answers the first line that comes back, or the second if the
// first is a length.
func (s *site) ask(ctx context.Context, command string) (string, error) {
	conn, err := s.h.Dial(ctx, "tcp", net.JoinHostPort(s.Address, "6379"))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if _, err := fmt.Fprintf(conn, "%s\r\n", command); err != nil {
		return "", err
	}
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	if err == nil && strings.HasPrefix(line, "$") {
		line, err = in.ReadString('\n')
	}
	return strings.TrimSpace(line), err
}

// redis answers a command, once it answers at all.
func (s *site) redis(t *testing.T, command, want string) {
	t.Helper()
	eventually(t, "ask redis: "+command, func(ctx context.Context) error {
		got, err := s.ask(ctx, command)
		if err != nil || got != want {
			return fmt.Errorf("redis says %q, want %q: %w", got, want, err)
		}
		return nil
	})
}

// redis with --restart=always. Killed: the monitor starts it and its file is there. Asleep: the
// monitor leaves it alone. Woken by godwit: its memory is there, at the same port, and the
// monitor guards it as before. Woken by nerdctl start, the same.
func (s *site) testRedis(t *testing.T) {
	s.sentinel(t)
	s.detached(t, "redis", "-p", "6379:6379", "--restart", "always", images.Redis)
	s.redis(t, "SET bird godwit", "+OK")
	s.redis(t, "GET bird", "godwit")
	boot := s.sh(t, "redis", "cat /proc/sys/kernel/random/boot_id")
	s.redis(t, "CONFIG SET appendfsync always", "+OK")
	s.redis(t, "SET file written", "+OK")
	_, _ = s.ask(t.Context(), "SHUTDOWN NOSAVE") // ends without a word
	s.redis(t, "GET file", "written")
	second := s.sh(t, "redis", "cat /proc/sys/kernel/random/boot_id")
	if second == boot {
		t.Error("the same boot after a restart")
	}
	s.redis(t, "CONFIG SET appendonly no", "+OK") // from here on, only memory tells
	s.redis(t, "SET only memory", "+OK")
	id := strings.TrimSpace(s.ok(t, "ps", "-aq", "--no-trunc", "--filter", "name=redis"))
	for _, wake := range []struct {
		name  string
		tries int // of the monitor, at most
		do    func()
	}{
		{"godwit wake", 0, func() { s.Godwit(t, "wake", id) }},
		// It tells the monitor first, which may be faster, or in its way; one of them wakes it.
		{"nerdctl start", 2, func() { s.nerdctl(t, "start", "redis") }},
	} {
		t.Run(wake.name, func(t *testing.T) {
			tried, addresses := s.count(t, "redis"), s.sh(t, "redis", "cat /proc/net/fib_trie")
			s.Godwit(t, "hibernate", id)
			s.rounds(t)
			if out := s.Godwit(t, "ps"); !strings.Contains(out, "asleep") {
				t.Fatalf("after the monitor's rounds: %s", out)
			}
			wake.do()
			s.redis(t, "GET only", "memory")
			if now := s.sh(t, "redis", "cat /proc/net/fib_trie"); now != addresses {
				t.Errorf("its addresses are %s\nbefore they were %s", now, addresses)
			}
			s.sh(t, "redis", "echo awake by "+wake.name+" >/proc/1/fd/1")
			eventually(t, "the log goes on", func(context.Context) error {
				if out := s.ok(t, "logs", "redis"); !strings.HasSuffix(out, "awake by "+wake.name+"\n") {
					return fmt.Errorf("it says %q", out)
				}
				return nil
			})
			s.rounds(t)
			s.redis(t, "GET only", "memory")
			if again := s.sh(t, "redis", "cat /proc/sys/kernel/random/boot_id"); again != second {
				t.Error("another boot")
			}
			if got := s.field(t, "redis", `{{index .Config.Labels "containerd.io/restart.status"}}`); got != "running" ||
				s.count(t, "redis") > tried+wake.tries {
				t.Errorf("the monitor is told %q, and has tried %d times, %d before", got, s.count(t, "redis"), tried)
			}
		})
	}
}
