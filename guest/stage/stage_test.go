package stage

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func TestMountOptions(t *testing.T) {
	tests := []struct {
		name string
		in   []string
		want options
		is   func(error) bool
	}{
		{"flags", []string{"nosuid", "noexec", "ro"}, options{flags: unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_RDONLY}, nil},
		{"the last wins", []string{"ro", "rw", "noexec", "exec"}, options{}, nil},
		{"data", []string{"mode=755", "size=1k", "nodev"},
			options{flags: unix.MS_NODEV, data: []string{"mode=755", "size=1k"}}, nil},
		{"bind", []string{"rbind", "rprivate"}, options{flags: unix.MS_BIND | unix.MS_REC, propagation: []string{"rprivate"}},
			nil},
		{"copy up", []string{"tmpcopyup"}, options{}, errdefs.IsNotImplemented},
		{"id map", []string{"idmap"}, options{}, errdefs.IsNotImplemented},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := Mount{Target: "/x", Options: tt.in}
			got, err := m.options()
			if tt.is != nil {
				if !tt.is(err) {
					t.Fatal(err)
				}
				return
			}
			if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(options{})); d != "" || err != nil {
				t.Fatal(err, d)
			}
		})
	}
}

func TestLookPath(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", os.Getenv("PATH")) // lookPath clears the environment; put back after
	if err := os.WriteFile(filepath.Join(dir, "tool"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		arg, want, text string
		is              func(error) bool
	}{
		{"tool", filepath.Join(dir, "tool"), "", nil},
		{filepath.Join(dir, "tool"), filepath.Join(dir, "tool"), "", nil},
		{"none", "", `exec: "none": executable file not found in $PATH`, errdefs.IsNotFound},
		{"/none", "", `exec: "/none": stat /none: no such file or directory`, errdefs.IsNotFound},
		{filepath.Join(dir, "data"), "", "", errdefs.IsPermissionDenied},
	}
	for _, tt := range tests {
		got, err := lookPath(&specs.Process{Args: []string{tt.arg}, Env: []string{"PATH=" + dir}})
		if got != tt.want || tt.is != nil && !tt.is(err) {
			t.Errorf("%s: %q %v", tt.arg, got, err)
		}
		if tt.text != "" && err.Error() != tt.text+": not found" {
			t.Errorf("%s: %v", tt.arg, err)
		}
	}
}

// pipes are both ends of a socket, as agent and child have them.
func pipes(t *testing.T) (agent, child *Pipe) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := [2]*Pipe{}
	for i, fd := range fds {
		if ends[i], err = NewPipe(os.NewFile(uintptr(fd), "stage")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}

func TestProtocolCarriesErrorsAndDescriptors(t *testing.T) {
	agent, child := pipes(t)
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	defer wr.Close()
	go func() { // larger than a socket buffer
		env := make([]string, 20000)
		for i := range env {
			env[i] = "NAME=some value that takes room"
		}
		_ = agent.SendProcess(&Process{Spec: &specs.Process{Env: env}, Personality: 5}, []int{int(wr.Fd())})
	}()
	m, err := child.receive()
	if err != nil || m.Process == nil || len(m.Process.Spec.Env) != 20000 || m.Process.Personality != 5 {
		t.Fatal(err)
	}
	got := child.TakeFDs()
	if len(got) != 1 {
		t.Fatal(got)
	}
	unix.Close(got[0])
	for _, class := range classes {
		if err := child.send(message{Error: toError(errors.Join(errors.New("why"), class))}); err != nil {
			t.Fatal(err)
		}
		if _, err := agent.Next(); !errors.Is(err, class) {
			t.Fatal(err)
		}
	}
	child.Close()
	if e, err := agent.Next(); e != Done || err != nil {
		t.Fatal(e, err)
	}
}

func TestRefusals(t *testing.T) {
	ok := func() *specs.Process { return &specs.Process{Args: []string{"x"}, Cwd: "/"} }
	if err := CheckProcess(ok()); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		change func(*specs.Process)
		is     func(error) bool
	}{
		"args":     {func(p *specs.Process) { p.Args = nil }, errdefs.IsInvalidArgument},
		"cwd":      {func(p *specs.Process) { p.Cwd = "x" }, errdefs.IsInvalidArgument},
		"apparmor": {func(p *specs.Process) { p.ApparmorProfile = "x" }, errdefs.IsNotImplemented},
		"selinux":  {func(p *specs.Process) { p.SelinuxLabel = "x" }, errdefs.IsNotImplemented},
		"schedule": {func(p *specs.Process) { p.Scheduler = &specs.Scheduler{} }, errdefs.IsNotImplemented},
		"io":       {func(p *specs.Process) { p.IOPriority = &specs.LinuxIOPriority{} }, errdefs.IsNotImplemented},
	}
	for name, tt := range tests {
		p := ok()
		tt.change(p)
		if err := CheckProcess(p); !tt.is(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A child that is killed before it has read what it was sent resets its socket.
func TestKilledChildIsDone(t *testing.T) {
	agent, child := pipes(t)
	if err := agent.SendGo(); err != nil {
		t.Fatal(err)
	}
	child.Close()
	if e, err := agent.Next(); e != Done || err != nil {
		t.Fatal(e, err)
	}
}
