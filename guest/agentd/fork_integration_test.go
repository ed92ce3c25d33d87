//go:build integration

package agentd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/client/seccomp"

	profiles "github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// usual are capabilities that containers have.
var usual = []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_NET_RAW"}

func every(caps []string) *specs.LinuxCapabilities {
	return &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
}

// program is what busybox runs.
func program(change func(*specs.Process), args ...string) *specs.Process {
	p := &specs.Process{Args: append([]string{"/bin/busybox"}, args...), Cwd: "/", Env: []string{"PATH=/none:/etc:/bin"},
		Capabilities: every(usual), NoNewPrivileges: true,
		// The default is more than a test host may give.
		Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 100, Hard: 200}}}
	if change != nil {
		change(p)
	}
	return p
}

// newContainerGuest is a guest with a pod that has one container, whose init sleeps.
func newContainerGuest(t *testing.T) *Service {
	t.Helper()
	s := newGuest(t)
	profile := profiles.DefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}})
	filter, err := seccomp.Compile(profile)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.SetupPod(t.Context(), &agentv1.SetupPodRequest{Hostname: "h"}); err != nil {
		t.Fatal(err)
	}
	for id, setup := range map[string]*agentv1.SetupRequest{"c1": {}, "filtered": {
		Seccomp: &agentv1.Seccomp{Program: filter.Program, Flags: filter.Flags}}} {
		setup.Mounts = []*agentv1.Mount{{Type: "proc", Source: "proc", Target: "/proc"}}
		if _, err := s.AddContainer(t.Context(), &agentv1.AddContainerRequest{Container: id, Setup: setup}); err != nil {
			t.Fatal(err)
		}
		fill(t, s.containers[id].root.path)
		start(t, s, id, id, program(nil, "sleep", "100000"))
	}
	t.Cleanup(func() {
		for _, id := range []string{"c1", "filtered"} {
			if _, err := s.RemoveContainer(context.Background(), &agentv1.RemoveContainerRequest{Container: id}); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

// fill makes the files of a container.
func fill(t *testing.T, root string) {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	for path, f := range map[string]struct {
		content string
		mode    os.FileMode
	}{
		"bin/busybox": {string(busybox), 0o755}, "etc/passwd": {"u:x:1000:1000::/home/u:/bin/sh\n", 0o644},
		"etc/busybox": {"no program", 0o644}, "bin/locked": {"#!/bin/none\n", 0o755}, "private/file": {"", 0o644},
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(f.content), f.mode); err != nil {
			t.Fatal(err)
		}
	}
	private := filepath.Join(root, "private")
	if err := os.Chown(private, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(private, 0o700); err != nil {
		t.Fatal(err)
	}
}

func request(t *testing.T, id, container string, spec *specs.Process) *agentv1.StartRequest {
	t.Helper()
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return &agentv1.StartRequest{Id: id, Container: container, Process: data, Stdin: true, Stdout: true, Stderr: true}
}

func start(t *testing.T, s *Service, id, container string, spec *specs.Process) {
	t.Helper()
	if _, err := s.Start(t.Context(), request(t, id, container, spec)); err != nil {
		t.Fatalf("%v: %v", spec.Args, err)
	}
}

// ran is what a process has done.
func ran(t *testing.T, p *process) string {
	t.Helper()
	<-p.done
	var text string
	for i, out := range []*output{p.stdout, p.stderr} {
		for at := uint64(0); ; {
			data, _, eof := out.read(t.Context(), at, readLimit, time.Minute)
			text += string(data)
			if at += uint64(len(data)); eof {
				break
			}
		}
		text += fmt.Sprintf("[end of %d]\n", i)
	}
	return fmt.Sprintf("%s[status %d]", text, p.exit().ExitStatus)
}

// slowTimers gives the threads of this program the timers that some threads of the agent have.
func slowTimers(t *testing.T) {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		if err := os.WriteFile("/proc/"+thread.Name()+"/timerslack_ns", []byte("4000000"), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// A process of the fork server is the one that a stage would have made: the same user, capabilities, limits, filter,
// signals, files, groups, namespaces and place.
func TestForkIsAsAStage(t *testing.T) {
	if !inGuest(t) {
		return
	}
	slowTimers(t)
	s := newContainerGuest(t)
	score, mask := 500, uint32(0o27)
	user := func(p *specs.Process) {
		p.User = specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{7, 8}, Umask: &mask}
		p.Cwd, p.OOMScoreAdj = "/private", &score
		p.Rlimits = append(p.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_NPROC", Soft: 100, Hard: 200},
			specs.POSIXRlimit{Type: "RLIMIT_AS", Soft: 1 << 32, Hard: 1 << 33}, // a stage that runs late dies in 1 GiB
			specs.POSIXRlimit{Type: "RLIMIT_CPU", Soft: 100, Hard: 200})
		p.Capabilities.Inheritable, p.Capabilities.Ambient = []string{"CAP_NET_RAW"}, []string{"CAP_NET_RAW"}
		p.NoNewPrivileges = false
	}
	tests := map[string]*specs.Process{
		"by PATH":     program(func(p *specs.Process) { p.Args[0] = "busybox" }, "env"),
		"relative":    program(func(p *specs.Process) { p.Args[0], p.Cwd = "./busybox", "/bin" }, "pwd"),
		"descriptors": program(nil, "ls", "/proc/self/fd/"),
		"namespaces":  program(nil, "ls", "-l", "/proc/self/ns/"),
		"exit":        program(nil, "sh", "-c", "exit 7"),
		"signal":      program(nil, "sh", "-c", "kill -9 $$"),
		"error":       program(nil, "cat", "/none"),
		"home":        program(user, "env"),
	}
	for name, change := range map[string]func(*specs.Process){"root": nil, "user": user, "none": func(p *specs.Process) {
		p.Capabilities = &specs.LinuxCapabilities{}
	}} {
		tests[name+" status"] = program(change, "grep", "-E",
			"^(Umask|Uid|Gid|Groups|NSsid|NSpgid|Sig(Blk|Ign|Cgt)|ShdPnd|Cap.*|NoNewPrivs|Seccomp|CoreDumping)",
			"/proc/self/status")
		for _, file := range []string{"limits", "cgroup", "oom_score_adj", "personality", "cmdline", "timerslack_ns"} {
			tests[name+" "+file] = program(change, "cat", "/proc/self/"+file)
		}
		tests[name+" files"] = program(change, "sh", "-c", "pwd; busybox touch f && busybox ls -ln f; busybox rm f")
	}
	n := 0
	for _, container := range []string{"c1", "filtered"} {
		for name, spec := range tests {
			c, first := s.containers[container], s.processOf(container)
			n++
			r := request(t, fmt.Sprint("e", n), container, spec)
			forked, staged := newProcess(r.Id, c, spec, s.opts.Poke), newProcess(r.Id, c, spec, s.opts.Poke)
			if err := s.fork(t.Context(), forked, first, r); err != nil {
				t.Errorf("%s in %s: %v", name, container, err)
				continue
			}
			forked.stdin.stop()
			got := steady(ran(t, forked))
			s.forks.traced.Store(true)
			if err := s.startExec(t.Context(), c, staged, r); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			s.forks.traced.Store(false)
			staged.stdin.stop()
			if strings.HasSuffix(name, "timerslack_ns") && !strings.HasPrefix(got, "50000\n") {
				t.Errorf("%s in %s: %s", name, container, got)
			}
			if d := cmp.Diff(steady(ran(t, staged)), got); d != "" {
				t.Errorf("%s in %s: stage, fork server:\n%s", name, container, d)
			}
		}
	}
}

// steady leaves out what differs between two processes: their pids.
func steady(text string) string {
	var all []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "NSsid") || strings.HasPrefix(line, "NSpgid") {
			line = fmt.Sprintln(strings.Fields(line)[0], len(strings.Fields(line)))
		}
		all = append(all, line)
	}
	return strings.Join(all, "")
}

// A process may have an address space that is smaller than what Go's runtime reserves: the stage that starts it has
// no such limit while it works.
func TestSmallAddressSpace(t *testing.T) {
	if !inGuest(t) {
		return
	}
	s := newContainerGuest(t)
	spec := program(func(p *specs.Process) {
		p.Rlimits = append(p.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_AS", Soft: 16 << 20, Hard: 32 << 20},
			specs.POSIXRlimit{Type: "RLIMIT_DATA", Soft: 8 << 20, Hard: 8 << 20})
	}, "sh", "-c", "ulimit -v; ulimit -d")
	for _, container := range []string{"c1", "filtered"} {
		for i, way := range []string{"stage", "fork server"} {
			c, first := s.containers[container], s.processOf(container)
			r := request(t, fmt.Sprint("small", i), container, spec)
			p := newProcess(r.Id, c, spec, s.opts.Poke)
			start := func() error { return s.startExec(t.Context(), c, p, r) }
			if way == "fork server" {
				start = func() error { return s.fork(t.Context(), p, first, r) }
			} else {
				s.forks.traced.Store(true)
			}
			err := start()
			s.forks.traced.Store(false)
			if err != nil {
				t.Errorf("%s in %s: %v", way, container, err)
				continue
			}
			p.stdin.stop()
			if got := ran(t, p); !strings.HasPrefix(got, "16384\n8192\n") {
				t.Errorf("%s in %s: %s", way, container, got)
			}
		}
	}
}

// Where the fork server starts nothing, the error is that of a stage.
func TestForkRefuses(t *testing.T) {
	if !inGuest(t) {
		return
	}
	s := newContainerGuest(t)
	for name, tt := range map[string]struct {
		spec *specs.Process
		is   func(error) bool
	}{
		"no program":     {program(func(p *specs.Process) { p.Args[0] = "none" }), errdefs.IsNotFound},
		"no file":        {program(func(p *specs.Process) { p.Args[0] = "/none" }), errdefs.IsNotFound},
		"no interpreter": {program(func(p *specs.Process) { p.Args[0] = "locked" }), errdefs.IsNotFound},
		"no right":       {program(func(p *specs.Process) { p.Args[0] = "/etc/busybox" }), errdefs.IsPermissionDenied},
		"a directory": {program(func(p *specs.Process) { p.Args[0] = "/etc" }),
			func(err error) bool { return err != nil }},
		"no cwd": {program(func(p *specs.Process) { p.Cwd = "/none" }, "pwd"), errdefs.IsNotFound},
		"limit": {program(func(p *specs.Process) { p.Rlimits = []specs.POSIXRlimit{{Type: "x"}} }, "pwd"),
			errdefs.IsInvalidArgument},
	} {
		if _, err := s.Start(t.Context(), request(t, "e", "c1", tt.spec)); !tt.is(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Each refusal was the server's own: it is there still.
	if s.forks.server.Load() == nil {
		t.Error("the fork server has ended")
	}
}

// A working directory that is a descriptor of the server leads nowhere: not outside the container.
func TestForkHasNoWayOut(t *testing.T) {
	if !inGuest(t) {
		return
	}
	s := newContainerGuest(t)
	start(t, s, "first", "c1", program(nil, "true"))
	server := s.forks.server.Load().one.pid
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", server))
	if err != nil || len(fds) < 5 {
		t.Fatalf("descriptors of the server: %v, %v", fds, err)
	}
	for _, fd := range fds {
		for _, of := range []string{"self", fmt.Sprint(server)} {
			spec := program(func(p *specs.Process) { p.Cwd = "/proc/" + of + "/fd/" + filepath.Base(fd) }, "pwd")
			if _, err := s.Start(t.Context(), request(t, "e", "c1", spec)); err == nil {
				t.Errorf("a process begins in %s", spec.Cwd)
			}
		}
	}
	if f, err := os.OpenFile(fmt.Sprintf("/proc/%d/exe", server), os.O_WRONLY, 0); err != unix.ETXTBSY && f != nil {
		t.Errorf("the agent's program can be written: %v", err)
	}
}
