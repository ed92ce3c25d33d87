//go:build integration

package nerdctl

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/integration/images"
)

// check is a script in a container and what it must say.
type check struct{ name, script, want string }

func (s *site) checks(t *testing.T, name string, all []check) {
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, s.sh(t, name, c.script)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// flagChecks are what the flags of testFlags mean in the guest.
var flagChecks = []check{
	{"user and groups", "id", "uid=1000(guest) gid=50(staff) groups=20,50(staff)\n"},
	{"umask", "umask", "0077\n"},
	{"workdir", "pwd", "/srv/work\n"},
	{"init's workdir", "readlink /proc/1/cwd", "/srv/work\n"},
	// containerd's default set with bit 12 (NET_ADMIN) and without bit 27 (MKNOD).
	{"capabilities", "grep CapBnd /proc/1/status", "CapBnd:\t00000000a00435fb\n"},
	{"no new privileges", "grep NoNewPrivs /proc/1/status", "NoNewPrivs:\t1\n"},
	{"no seccomp", "grep Seccomp: /proc/1/status", "Seccomp:\t0\n"},
	{"open files", "ulimit -Sn; ulimit -Hn", "2000\n3000\n"},
	{"core", "ulimit -c", "0\n"},
	{"OOM score", "cat /proc/1/oom_score_adj", "100\n"},
	{"environment", `echo "$PLAIN,$FROM_FILE,$ALSO,$HOSTNAME"`, "1,two words,x=y,guest\n"},
	{"read-only root", "touch /x 2>&1; touch /srv/x 2>&1; true",
		"touch: /x: Read-only file system\ntouch: /srv/x: Read-only file system\n"},
	{"tmpfs", "touch /scratch/x && df -k /scratch | awk 'NR==2 {print $2}'", "1024\n"},
	{"tmpfs mode", "stat -c %a /scratch", "1777\n"},
	{"mount", "df -k /more | awk 'NR==2 {print $2}'", "3072\n"},
	{"shm", "df -k /dev/shm | awk 'NR==2 {print $2}'", "2048\n"},
	{"bind", "cat /shared/file; touch /shared/x 2>&1; true", "shared\ntouch: /shared/x: Read-only file system\n"},
	{"memory", "cd /sys/fs/cgroup; cat memory.max memory.swap.max memory.low", "104857600\n52428800\n52428800\n"},
	{"cpu", "cd /sys/fs/cgroup; cat cpu.max cpu.weight; nproc", "150000 100000\n20\n2\n"},
	{"pids", "cat /sys/fs/cgroup/pids.max", "60\n"},
	{"hostname", "hostname; cat /etc/hostname /proc/sys/kernel/domainname", "guest\nguest\nexample\n"},
	{"DNS", "cat /etc/resolv.conf", "search s.example\nnameserver 192.0.2.1\noptions ndots:3\n"},
	{"hosts", "grep -v '^#' /etc/hosts | tr -s '\\t ' ' '",
		"127.0.0.1 localhost localhost.localdomain\n::1 localhost localhost.localdomain\n192.0.2.9 other\n10.4.0.77 " +
			"guest.example guest flags\n"},
	{"address", "ip -4 -o addr show eth0 | awk '{print $4}'; cat /sys/class/net/eth0/address",
		"10.4.0.77/24\n02:00:00:00:00:77\n"},
	{"sysctl", "cat /proc/sys/net/core/somaxconn /proc/sys/kernel/msgmax", "77\n9000\n"},
}

// Every flag is what the guest sees: one VM with all of them, asked from inside.
func (s *site) testFlags(t *testing.T) {
	shared := t.TempDir()
	if err := os.WriteFile(filepath.Join(shared, "file"), []byte("shared\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.write(t, "/etc/test.env", "FROM_FILE=two words\n# no comment\nALSO=x=y\n")
	s.ok(t, "volume", "create", "data")
	t.Cleanup(func() {
		if _, err := s.Run(context.WithoutCancel(t.Context()), "nerdctl", "volume", "rm", "data"); err != nil {
			t.Error(err)
		}
	})
	flags := []string{
		"--user", "1000:50", "--group-add", "20", "--umask", "0077", "--workdir", "/srv/work",
		"--cap-add", "NET_ADMIN", "--cap-drop", "MKNOD", "--security-opt", "no-new-privileges", "--security-opt",
		"seccomp=unconfined",
		"--ulimit", "nofile=2000:3000", "--ulimit", "core=0", "--oom-score-adj", "100",
		"--env", "PLAIN=1", "--env-file", "/etc/test.env", "--label", "who=tests", "--annotation", "godwit.dev/volumes=copy",
		"--read-only", "--tmpfs", "/scratch:size=1m,mode=1777", "--shm-size", "2m",
		"-v", shared + ":/shared:ro", "-v", "data:/data", "--mount", "type=tmpfs,target=/more,tmpfs-size=3145728",
		"--memory", "100m", "--memory-swap", "150m", "--memory-reservation", "50m", "--cpus", "1.5", "--cpu-shares", "512",
		"--pids-limit", "60",
		"--hostname", "guest", "--domainname", "example", "--dns", "192.0.2.1", "--dns-search", "s.example", "--dns-option",
		"ndots:3",
		"--add-host", "other:192.0.2.9", "--ip", "10.4.0.77", "--mac-address", "02:00:00:00:00:77",
		"--sysctl", "net.core.somaxconn=77", "--sysctl", "kernel.msgmax=9000", "--stop-signal", "SIGUSR1",
		"--entrypoint", "sh", images.Busybox, "-c", "trap 'echo stopped; exit 3' USR1; echo up; while :; do sleep 0.1; done",
	}
	s.detached(t, "flags", flags...)
	s.checks(t, "flags", flagChecks)
	t.Run("writable below a read-only root", func(t *testing.T) {
		s.ok(t, "exec", "-u", "0", "flags", "sh", "-c",
			"echo x >/data/x && echo 192.0.2.8 more >>/etc/hosts && echo new >/etc/hostname")
	})
	if got := s.field(t, "flags", "{{.Config.Labels.who}}"); got != "tests" {
		t.Errorf("label who = %q", got)
	}
	s.ok(t, "stop", "flags")
	if got := s.field(t, "flags", "{{.State.Status}} {{.State.ExitCode}}"); got != "exited 3" {
		t.Errorf("after stop by SIGUSR1: %s", got)
	}
	if got := s.ok(t, "logs", "flags"); got != "up\nstopped\n" {
		t.Errorf("logs %q", got)
	}
	if volume := strings.TrimSpace(s.ok(t, "volume", "inspect", "--format", "{{.Mountpoint}}", "data")); volume == "" {
		t.Error("the volume has no directory")
	} else if left, err := os.ReadDir(s.inside(volume)); err != nil || len(left) > 0 {
		t.Errorf("the VM's copy wrote to the volume: %v, %v", left, err)
	}
}

// A container with nothing of the host's but its image: no network, all capabilities, a
// helper as its first process.
func (s *site) testIsolated(t *testing.T) {
	own, err := os.ReadFile("/proc/self/status") // nerdctl gives what it has itself
	if err != nil {
		t.Fatal(err)
	}
	capabilities := regexp.MustCompile(`CapEff:.*\n`).FindString(string(own))
	s.detached(t, "isolated", "--net", "none", "--privileged", "--security-opt", "privileged-without-host-devices",
		"--init", "--init-binary", "tini-static", images.Busybox, "sleep", "100000")
	s.checks(t, "isolated", []check{
		{"network", "ls /sys/class/net; ip -4 -o addr | awk '{print $4}'", "lo\n127.0.0.1/8\n"},
		{"capabilities", "grep CapEff /proc/1/status", capabilities},
		{"writable views", "touch /sys/fs/cgroup/cgroup.procs && mount -o remount,rw /sys && echo 1 " +
			">/proc/sys/vm/overcommit_memory && echo well", "well\n"},
		{"devices", "ls /dev | tr '\\n' ' '", "core fd full mqueue null ptmx pts random shm stderr stdin stdout tty " +
			"urandom zero "},
		{"init", "tr '\\0' ' ' </proc/1/cmdline", "/sbin/tini-static -- sleep 100000 "},
	})
}
