//go:build integration

package agent

import (
	"fmt"
	"strings"
	"testing"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/guesttool"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// mapped is a user namespace whose root is user 70000 of the guest.
func mapped() *agentv1.UserNamespace {
	one := []*agentv1.IDMapping{{Container: 0, Guest: 70000, Size: 65536}}
	return &agentv1.UserNamespace{Uids: one, Gids: one}
}

// bounded is a process that cannot trace, so that the fork server starts it.
func bounded(args ...string) *specs.Process {
	p := process(args...)
	caps := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SETUID", "CAP_SETGID", "CAP_SYS_ADMIN",
		"CAP_NET_BIND_SERVICE", "CAP_KILL"}
	p.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
	return p
}

// A container with a user namespace sees its files, its mounts and its processes with its own ids.
func TestUserNamespace(t *testing.T) {
	m := newMachine(t).boot().setup(func(r *agentv1.SetupRequest) {
		r.User, r.MapLayers = mapped(), true
		r.Mounts = append(r.Mounts, &agentv1.Mount{Type: "tmpfs", Source: "tmpfs", Target: "/made/run"})
		r.Files = []*agentv1.File{{Path: "/copied/file", Mode: 0o100600, Uid: 70000 + 1000, Gid: 70000}}
	})
	first := bounded("sh", "-c", "pwd; cat /proc/self/uid_map; exec sleep 100000")
	first.Cwd = "/srv/dir"
	if err := m.start("", first); err != nil {
		t.Fatal(err)
	}
	sh := func(p *specs.Process) string {
		t.Helper()
		m.execs++
		r, err := m.exec(fmt.Sprintf("e%d", m.execs), p, "")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(r.Out + r.Err)
	}
	for script, want := range map[string]string{
		"tr -s ' ' </proc/self/uid_map; tr -s ' ' </proc/self/gid_map": "0 70000 65536\n 0 70000 65536",
		"id -u; id -g": "0\n0",
		"stat -c %u:%g / /bin/busybox /dev /dev/shm /srv/dir /made/run | sort -u":             "0:0",
		"stat -c %u:%g /copied /copied/file":                                                  "0:0\n1000:0",
		"echo x >/etc/new && chown 7:8 /etc/new && stat -c %u:%g /etc/new":                    "7:8",
		"chown 7:8 /etc/passwd && stat -c %u:%g /etc/passwd":                                  "7:8",
		"chown 70000:0 /etc/new 2>&1 | grep -c .":                                             "1",
		"test $(stat -c %u /proc/1) = 0 && kill -0 1 && cat /proc/1/comm":                     "sleep",
		"stat -c %u /proc/sys/kernel; echo 1 2>&1 >/proc/sys/vm/drop_caches | wc -l":          "65534\n1",
		"mount -t tmpfs none /tmp && umount /tmp && echo mounted":                             "mounted",
		"umount /proc/kcore 2>&1 | wc -l; mount -o remount,rw /sys 2>&1 | wc -l":              "1\n1",
		"test -r /sys/fs/cgroup/cgroup.procs && test -d /sys/class/net/lo && echo x":          "x",
		"echo >/dev/null && head -c 1 /dev/zero | wc -c; ulimit -Hn":                          "1\n524288",
		"(timeout 1 nc -l -p 80 </dev/null; test $? -ge 124 && echo bound) 2>&1 | grep bound": "bound",
	} {
		if got := sh(bounded("sh", "-c", script)); got != want {
			t.Errorf("%s:\n%s\nwanted\n%s", script, got, want)
		}
	}
	user := bounded("sh", "-c",
		"id -u; id -G; stat -c %u /proc/self/; cat /copied/file && >/tmp/mine && stat -c %u /tmp/mine")
	user.User = specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{5}}
	user.Capabilities = &specs.LinuxCapabilities{}
	if got := sh(user); got != "1000\n1000 5\n1000\n1000" {
		t.Errorf("as a user: %s", got)
	}
	if got := sh(bounded(guesttool.Command, "no such tool")); got == "" {
		t.Error("a tool said nothing")
	}
	tty := process("sh", "-c", "id -u; stat -c %u:%g $(tty); tr -s ' ' </proc/self/uid_map; hostname other && hostname")
	tty.Terminal = true
	if got := sh(tty); got != "0\r\n0:5\r\n 0 70000 65536\r\nother" {
		t.Errorf("on a terminal: %q", got)
	}
	if got := sh(process("sh", "-c", "tr -s ' ' </proc/self/uid_map; id -u")); got != "0 70000 65536\n0" {
		t.Errorf("by a stage: %q", got)
	}
	other := process("true")
	other.User.UID = 65536
	err := m.start("other", other)
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "linux.uidMappings") {
		t.Errorf("a user that is not mapped: %v", err)
	}
	if err := m.start("none", process("/none")); err == nil || !strings.Contains(err.Error(), "/none") {
		t.Errorf("a program that is missing: %v", err)
	}
}
