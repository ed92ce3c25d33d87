//go:build integration

package agent

import (
	"strings"
	"testing"

	agentv1 "godwit.dev/godwit/api/agent/v1"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestBoot(t *testing.T) {
	m := newMachine(t).boot().setup(nil)
	if err := m.start("", process("sh", "-c", "echo hello; echo oops >&2; hostname; exit 3")); err != nil {
		t.Fatal(err)
	}
	r := m.finish("", "")
	if r.Out != "hello\nbox\n" || r.Err != "oops\n" || r.Status != 3 || r.OOM {
		t.Fatalf("%+v", r)
	}
}

func TestIdentity(t *testing.T) {
	m := newMachine(t).boot().setup(nil).init()
	umask := uint32(0o027)
	score := 500
	tests := []struct {
		name   string
		change func(*specs.Process)
		script string
		want   string
	}{
		{"root", nil, "id -u; id -g; pwd; echo $HOME", "0\n0\n/\n/root\n"},
		{"user", func(p *specs.Process) { p.User = specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{7, 9}} },
			"id -u; id -G; echo $HOME", "1000\n1000 7 9\n/tmp\n"},
		{"umask", func(p *specs.Process) { p.User.Umask = &umask }, "umask", "0027\n"},
		{"cwd", func(p *specs.Process) { p.Cwd = "/etc" }, "pwd", "/etc\n"},
		{"env", func(p *specs.Process) { p.Env = append(p.Env, "A=b c", "HOME=/x") }, "echo $A $HOME", "b c /x\n"},
		{"rlimit", func(p *specs.Process) {
			p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 123, Hard: 456}}
		}, "ulimit -Sn; ulimit -Hn", "123\n456\n"},
		{"caps", func(p *specs.Process) {
			kill := []string{"CAP_KILL"}
			p.Capabilities = &specs.LinuxCapabilities{Bounding: kill, Effective: kill, Permitted: kill, Inheritable: kill,
				Ambient: kill}
			p.User = specs.User{UID: 1000, GID: 1000}
		}, "grep Cap /proc/self/status | cut -f2", strings.Repeat("0000000000000020\n", 5)},
		{"no caps", func(p *specs.Process) { p.Capabilities = &specs.LinuxCapabilities{} },
			"grep Cap /proc/self/status | cut -f2", strings.Repeat("0000000000000000\n", 5)},
		{"no new privileges", func(p *specs.Process) {
			p.NoNewPrivileges = true
		}, "grep NoNewPrivs /proc/self/status | cut -f2", "1\n"},
		{"oom score", func(p *specs.Process) { p.OOMScoreAdj = &score }, "cat /proc/self/oom_score_adj", "500\n"},
		{"masked", nil, "cat /proc/kcore | wc -c; echo 1 2>/dev/null >/proc/sys/kernel/printk || echo ro", "0\nro\n"},
		{"devices", nil, "ls /dev | tr '\\n' ' '; stat -c %a /dev/null",
			"core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero 666\n"},
		{"modules that the kernel asks for", nil,
			"brctl addbr br0 && ip link add v0 type veth && ls /sys/class/net | tr '\\n' ' '", "br0 lo v0 veth0 "},
		{"loopback is up", nil, "cat /sys/class/net/lo/operstate", "unknown\n"},
		{"a driver that no start waits for comes by itself", nil,
			"until grep -qs virtio /sys/class/misc/hw_random/rng_available; do sleep 0.1; done; echo there", "there\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := process("sh", "-c", tt.script)
			if tt.change != nil {
				tt.change(p)
			}
			r, err := m.exec(tt.name, p, "")
			if err != nil {
				t.Fatal(err)
			}
			if r.Out != tt.want || r.Status != 0 {
				t.Fatalf("got %q %q %d, want %q", r.Out, r.Err, r.Status, tt.want)
			}
		})
	}
}

func TestStartErrors(t *testing.T) {
	m := newMachine(t).boot().setup(nil).init()
	tests := []struct {
		name, text string
		p          *specs.Process
		is         func(error) bool
	}{
		{"not in PATH", `exec: "foo": executable file not found in $PATH`, process("foo"), errdefs.IsNotFound},
		{"no such file", `exec: "/foo": stat /foo: no such file or directory`, process("/foo"), errdefs.IsNotFound},
		{"not executable", `exec: "/etc/secret": permission denied`, process("/etc/secret"), errdefs.IsPermissionDenied},
		{"no args", "process.args: it is empty", process(), errdefs.IsInvalidArgument},
		{"no cwd", "chdir to cwd", &specs.Process{Args: []string{"/bin/true"}, Cwd: "/none"}, errdefs.IsNotFound},
		{"apparmor", "process.apparmorProfile", &specs.Process{Args: []string{"/bin/true"}, Cwd: "/", ApparmorProfile: "x"},
			errdefs.IsNotImplemented},
		{"bad capability", "unknown", &specs.Process{Args: []string{"/bin/true"}, Cwd: "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_NONE"}}}, errdefs.IsInvalidArgument},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := m.start(tt.name, tt.p)
			if err == nil || !strings.Contains(err.Error(), tt.text) || !tt.is(err) {
				t.Fatalf("got %v, want %q", err, tt.text)
			}
			if _, err := m.agent.WaitExit(t.Context(), tt.name); !errdefs.IsNotFound(err) {
				t.Fatalf("it is known: %v", err)
			}
		})
	}
	if _, err := m.agent.Wait(t.Context(), &agentv1.WaitRequest{Id: "never"}); !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
}
