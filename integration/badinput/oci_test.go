//go:build integration

package badinput

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// box is containerd's client on one node.
type box struct {
	*client.Client
	ctx   context.Context
	image client.Image
}

func newBox(t *testing.T, n *harness.Node) *box {
	t.Helper()
	c, err := client.New(n.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	ctx := namespaces.WithNamespace(t.Context(), "default")
	image, err := c.GetImage(ctx, images.Busybox)
	if err != nil {
		t.Fatal(err)
	}
	return &box{c, ctx, image}
}

func edit(fn func(s *specs.Spec)) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		fn(s)
		return nil
	}
}

// task makes a container and its task. The end of the test removes both.
func (b *box) task(t *testing.T, id string, io cio.Creator, opts ...oci.SpecOpts) (client.Task, error) {
	t.Helper()
	opts = append([]oci.SpecOpts{oci.WithImageConfig(b.image), oci.WithProcessArgs("sleep", "1000")}, opts...)
	c, err := b.NewContainer(b.ctx, id, client.WithImage(b.image), client.WithNewSnapshot(id, b.image),
		client.WithRuntime(runtimeName, nil), client.WithNewSpec(opts...))
	if err != nil {
		t.Fatal(err)
	}
	clean := namespaces.WithNamespace(context.WithoutCancel(t.Context()), "default")
	t.Cleanup(func() {
		if err := c.Delete(clean, client.WithSnapshotCleanup); err != nil {
			t.Errorf("delete container %s: %v", id, err)
		}
	})
	task, err := c.NewTask(b.ctx, io)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if _, err := task.Delete(clean, client.WithProcessKill); err != nil && !errdefs.IsNotFound(err) {
			t.Errorf("delete task %s: %v", id, err)
		}
	})
	return task, nil
}

// exec runs a process in a task to its end and answers its output.
func (b *box) exec(t *testing.T, task client.Task, id string, p *specs.Process) (string, uint32, error) {
	t.Helper()
	var out bytes.Buffer
	streams := cio.WithStreams(nil, &out, io.Discard)
	if p.Terminal {
		streams = cio.WithStreams(strings.NewReader(""), &out, nil)
	}
	opts := []cio.Opt{streams, cio.WithFIFODir(t.TempDir())} // the node has a /run of its own
	if p.Terminal {
		opts = append(opts, cio.WithTerminal)
	}
	e, err := task.Exec(b.ctx, id, p, cio.NewCreator(opts...))
	if err != nil {
		return "", 0, err
	}
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	wait, err := e.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(ctx); err != nil {
		_, _ = e.Delete(ctx)
		return "", 0, err
	}
	status := <-wait
	if err := status.Error(); err != nil {
		t.Fatalf("wait for exec %s: %v", id, err)
	}
	e.IO().Wait()
	if _, err := e.Delete(ctx); err != nil {
		t.Errorf("delete exec %s: %v", id, err)
	}
	return strings.ReplaceAll(out.String(), "\r\n", "\n"), status.ExitCode(), nil
}

// Every field of the OCI spec that docs/reference/oci-spec.md calls honoured is, as a process in the container tells.
// What cannot be run is refused by name, and nothing stays.
func TestOCISpec(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true})
	n := h.Node(0)
	n.CheckClean(t)
	b := newBox(t, n)
	dir := t.TempDir()
	programs(t, dir)
	task, err := b.task(t, "oci", cio.LogFile(filepath.Join(dir, "log")), everything(t, dir)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Start(b.ctx); err != nil {
		t.Fatal(err)
	}
	spec, err := task.Spec(b.ctx)
	if err != nil {
		t.Fatal(err)
	}
	sh := func(text string) *specs.Process {
		p := *spec.Process
		p.Args = []string{"sh", "-c", "exec 2>&1; " + text}
		return &p
	}
	t.Run("init", func(t *testing.T) { testHonoured(t, b, task, sh) })
	t.Run("seccomp", func(t *testing.T) { testSeccomp(t, b, task, sh) })
	t.Run("exec", func(t *testing.T) { testExecFields(t, b, task, sh) })
	t.Run("programs", func(t *testing.T) { testPrograms(t, b, task, sh) })
	t.Run("refused", func(t *testing.T) { testSpecRefused(t, b, dir) })
	t.Run("bundle is gone", func(t *testing.T) {
		bundle := filepath.Join(n.Dir, "state", "io.containerd.runtime.v2.task", "default", "oci")
		if _, err := n.Run(t.Context(), "test", "-f", filepath.Join(bundle, "config.json")); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Run(t.Context(), "rm", "-rf", bundle); err != nil {
			t.Fatal(err)
		}
		if s, err := task.Status(b.ctx); err != nil || s.Status != client.Running {
			t.Errorf("status without a bundle: %v, %v", s, err)
		}
		if out, code, err := b.exec(t, task, "after", sh("echo well")); out != "well\n" || code != 0 || err != nil {
			t.Errorf("exec without a bundle: %q, %d, %v", out, code, err)
		}
	})
	t.Run("hooks", func(t *testing.T) {
		if _, err := task.Delete(b.ctx, client.WithProcessKill); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "hooks"))
		if want := "prestart oci\ncreateRuntime oci\npoststart oci\npoststop oci\n"; err != nil || string(data) != want {
			t.Errorf("hooks wrote %q, %v; want %q", data, err, want)
		}
	})
}

// everything sets as many fields as one container can have.
func everything(t *testing.T, dir string) []oci.SpecOpts {
	t.Helper()
	hook := func(kind string) []specs.Hook {
		return []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c",
			`id=$(sed 's/.*"id":"\([a-z]*\)".*/\1/'); echo ` + kind + ` $id >>` + filepath.Join(dir, "hooks")},
			Env: []string{"PATH=/bin:/usr/bin"}}}
	}
	return []oci.SpecOpts{seccomp.WithDefaultProfile(), edit(func(s *specs.Spec) {
		p, l := s.Process, s.Linux
		p.Cwd = "/made/for/it"
		score, umask := 300, uint32(0o027)
		p.OOMScoreAdj, p.User.Umask, p.User.AdditionalGids = &score, &umask, []uint32{7, 9}
		p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 123, Hard: 456},
			{Type: "RLIMIT_CORE", Soft: 0, Hard: 0}}
		p.ApparmorProfile, p.SelinuxLabel = "nerdctl-default", "system_u:system_r:container_t:s0"
		s.Hostname, s.Domainname = "limosa", "lapponica"
		s.Hooks = &specs.Hooks{Prestart: hook("prestart"), CreateRuntime: hook("createRuntime"), Poststart: hook("poststart"),
			Poststop: hook("poststop")}
		s.Mounts = append(s.Mounts,
			specs.Mount{Type: "tmpfs", Source: "tmpfs", Destination: "/scratch", Options: []string{"size=1m", "mode=700",
				"noexec", "nodev", "shared"}},
			specs.Mount{Type: "cgroup", Source: "cgroup", Destination: "/sys/fs/cgroup", Options: []string{"ro", "nosuid"}},
			specs.Mount{Type: "bind", Source: dir, Destination: "/programs", Options: []string{"rbind", "rro", "nosuid",
				"rprivate"}},
			specs.Mount{Type: "bind", Source: filepath.Join(dir, "script"), Destination: "/noexec",
				Options: []string{"bind", "rw", "noexec"}})
		l.Sysctl = map[string]string{"net.core.somaxconn": "1234", "kernel/shm_rmid_forced": "1"}
		l.MaskedPaths, l.ReadonlyPaths = append(l.MaskedPaths, "/proc/cmdline"), append(l.ReadonlyPaths, "/tmp")
		l.RootfsPropagation = "rshared"
		l.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux32}
		l.Devices = []specs.LinuxDevice{{Path: "/dev/full", Type: "c", Major: 1, Minor: 7}}
		reservation, swap, limit, shares, quota, period, idle, pids := int64(16<<20), int64(192<<20), int64(128<<20),
			uint64(512), int64(150_000), uint64(100_000), int64(0), int64(64)
		l.Resources.Memory = &specs.LinuxMemory{Limit: &limit, Reservation: &reservation, Swap: &swap}
		l.Resources.CPU = &specs.LinuxCPU{Shares: &shares, Quota: &quota, Period: &period, Idle: &idle, Cpus: "0"}
		l.Resources.Pids = &specs.LinuxPids{Limit: &pids}
		l.Resources.Unified = map[string]string{"memory.high": "134217728"}
		// A rule of our own goes before containerd's.
		number := uint(27) // EFBIG
		l.Seccomp.Syscalls = append([]specs.LinuxSyscall{{Names: []string{"mkdir", "mkdirat"}, Action: specs.ActErrno,
			ErrnoRet: &number}}, l.Seccomp.Syscalls...)
	})}
}

// told is what the process says of itself, a line for each.
const told = `echo cwd=$(pwd); echo adj=$(cat /proc/self/oom_score_adj); echo umask=$(umask); echo groups=$(id -G)
echo nofile=$(ulimit -n) $(ulimit -Hn); echo core=$(ulimit -c); echo host=$(hostname)
echo domain=$(cat /proc/sys/kernel/domainname)
echo machine=$(uname -m); echo somaxconn=$(cat /proc/sys/net/core/somaxconn)
echo shm=$(cat /proc/sys/kernel/shm_rmid_forced)
echo masked=$(wc -c </proc/cmdline); touch /tmp/x 2>&1; touch /programs/x 2>&1
awk '$2 == "/scratch" || $2 == "/programs" || $2 == "/noexec" ||
	$2 == "/sys/fs/cgroup" {print "mount=" $2, $4}' /proc/mounts
/noexec 2>&1; awk '$5 == "/" || $5 == "/scratch" {print "peers=" $5, ($7 ~ /^shared:/)}' /proc/self/mountinfo
cd /sys/fs/cgroup; for f in memory.max memory.low memory.swap.max memory.high pids.max cpu.max cpu.weight; do
	echo $f=$(cat $f)
done
awk '/^(NoNewPrivs|Seccomp):/ {print $1 $2}' /proc/self/status; ls -l /dev/full | awk '{print "full=" $1, $5, $6}'`

func testHonoured(t *testing.T, b *box, task client.Task, sh func(string) *specs.Process) {
	out, code, err := b.exec(t, task, "told", sh(told))
	if err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s", code, err, out)
	}
	for _, want := range []string{
		"cwd=/made/for/it", "adj=300", "umask=0027", "groups=0 7 9", "nofile=123 456", "core=0", "host=limosa",
		"domain=lapponica",
		"machine=i686", "somaxconn=1234", "shm=1", "masked=0", "touch: /tmp/x: Read-only file system",
		"touch: /programs/x: Read-only file system",
		"sh: /noexec: Permission denied", "peers=/ 1", "peers=/scratch 1",
		"memory.max=134217728", "memory.low=16777216", "memory.high=134217728", "pids.max=64", "cpu.max=150000 100000",
		"cpu.weight=20",
		"NoNewPrivs:1", "Seccomp:2", "full=crw-rw-rw- 1, 7",
	} {
		if !strings.Contains("\n"+out, "\n"+want+"\n") {
			t.Errorf("the container does not say %q", want)
		}
	}
	for mount, flags := range map[string][]string{
		"/scratch": {"rw", "nodev", "noexec", "size=1024k", "mode=700"}, "/programs": {"ro", "nosuid"},
		"/noexec": {"rw", "noexec"}, "/sys/fs/cgroup": {"ro", "nosuid"},
	} {
		_, line, _ := strings.Cut(out, "mount="+mount+" ")
		line, _, _ = strings.Cut(line, "\n")
		for _, f := range flags {
			if !strings.Contains(","+line+",", ","+f+",") {
				t.Errorf("mount %s is %q, without %s", mount, line, f)
			}
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

// S2: a filter holds for processes with and without no_new_privs, and a capability that was needed to install it is
// gone after it.
func testSeccomp(t *testing.T, b *box, task client.Task, sh func(string) *specs.Process) {
	const try = `mkdir /x; busybox unshare -i true; touch /y && echo touched; ` +
		`awk '/^(CapEff|Seccomp|NoNewPrivs):/ {print $1 $2}' /proc/self/status`
	for name, gained := range map[string]bool{"no new privileges": true, "new privileges": false} {
		p := sh(try)
		p.NoNewPrivileges = gained
		p.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN"}, Effective: []string{"CAP_CHOWN"},
			Permitted: []string{"CAP_CHOWN"}}
		want := []string{"mkdir: can't create directory '/x': File too large", "unshare(0x8000000): Operation not permitted",
			"touched", "CapEff:0000000000000001", "Seccomp:2"}
		if gained {
			want = append(want, "NoNewPrivs:1")
		} else {
			want = append(want, "NoNewPrivs:0")
		}
		out, _, err := b.exec(t, task, strings.ReplaceAll(name, " ", "-"), p)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%s: the process does not say %q: %s", name, w, out)
			}
		}
	}
}

// The fields of a process that an exec can have for itself.
func testExecFields(t *testing.T, b *box, task client.Task, sh func(string) *specs.Process) {
	p := sh(`awk '/^Cap/ {print $1 $2}' /proc/self/status; echo $(id -u):$(id -g); stty size; umask`)
	umask := uint32(0o077)
	p.Terminal, p.ConsoleSize = true, &specs.Box{Height: 31, Width: 97}
	p.User = specs.User{UID: 1000, GID: 1001, Umask: &umask}
	p.Cwd = "/"
	bind, both := []string{"CAP_NET_BIND_SERVICE"}, []string{"CAP_NET_BIND_SERVICE", "CAP_CHOWN"}
	p.Capabilities = &specs.LinuxCapabilities{Bounding: both, Permitted: both, Inheritable: bind, Effective: both,
		Ambient: bind}
	out, code, err := b.exec(t, task, "fields", p)
	if err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s", code, err, out)
	}
	// Of the permitted set only what is ambient passes exec for one who is not root.
	const want = "CapInh:0000000000000400\nCapPrm:0000000000000400\nCapEff:0000000000000400\n" +
		"CapBnd:0000000000000401\nCapAmb:0000000000000400\n1000:1001\n31 97\n0077\n"
	if out != want {
		t.Errorf("the process says %q, want %q", out, want)
	}
	for name, change := range map[string]func(p *specs.Process){
		"process.scheduler": func(p *specs.Process) { p.Scheduler = &specs.Scheduler{Policy: specs.SchedOther} },
		"process.rlimits":   func(p *specs.Process) { p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_X"}} },
		"process.capabilities": func(p *specs.Process) {
			p.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_FLY"}}
		},
		"process.cwd": func(p *specs.Process) { p.Cwd = "x" },
	} {
		p := sh("true")
		change(p)
		if _, _, err := b.exec(t, task, "refused", p); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
