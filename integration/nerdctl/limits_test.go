//go:build integration

package nerdctl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// The flags that have another spelling, or mean something on the host, are what they say with a VM too.
func (s *site) testMoreFlags(t *testing.T) {
	s.write(t, "/etc/labels", "team=birds\n")
	s.detached(t, "more", "--network", "none", "--cpu-quota", "50000", "--cpu-period", "200000", "--label-file",
		"/etc/labels", "--cidfile", "/run/more.cid", "--pidfile", "/run/more.pid", "--cgroupns", "private", "--cpuset-cpus",
		"0", "--platform", "linux/amd64", "--stop-timeout", "1", "--ipc", "private", "--volume", "/etc/labels:/labels:ro",
		"--dns-opt", "ndots:4", images.Busybox, "sh", "-c", "trap : TERM; while :; do sleep 0.1; done")
	s.checks(t, "more", []check{
		{"network", "ls /sys/class/net", "lo\n"},
		{"quota and period", "cat /sys/fs/cgroup/cpu.max", "50000 200000\n"},
		{"volume", "cat /labels", "team=birds\n"},
	})
	s.pinned(t, s.field(t, "more", "{{.Id}}"))
	if got := s.field(t, "more", "{{.Config.Labels.team}}"); got != "birds" {
		t.Errorf("label team = %q", got)
	}
	if cid, err := os.ReadFile(s.inside("/run/more.cid")); err != nil || string(cid) != s.field(t, "more", "{{.Id}}") {
		t.Errorf("cidfile %q, %v", cid, err)
	}
	pid, err := os.ReadFile(s.inside("/run/more.pid"))
	if got := s.field(t, "more", "{{.State.Pid}}"); err != nil || strings.TrimSpace(string(pid)) != got {
		t.Errorf("pidfile %q, %v, want %s", pid, err, got)
	}
	s.ok(t, "stop", "more") // it does not end by itself
	if got := s.field(t, "more", "{{.State.ExitCode}}"); got != "137" {
		t.Errorf("after --stop-timeout: %s", got)
	}
	for _, file := range []string{"/run/more.cid", "/run/more.pid"} {
		if err := os.Remove(s.inside(file)); err != nil {
			t.Error(err)
		}
	}
}

// pinned sees that shim and VMM of a container may run on the host's first CPU alone.
func (s *site) pinned(t *testing.T, id string) {
	t.Helper()
	dir := s.Cgroup("cpuset", "default", id)
	if cgroups.Mode() == cgroups.Unified {
		dir = s.Cgroup("default", id)
	}
	members, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	vmm := false
	for _, pid := range strings.Fields(string(members)) {
		exe, err := os.Readlink("/proc/" + pid + "/exe")
		if err != nil {
			t.Fatal(err)
		}
		vmm = vmm || harness.IsVMM(filepath.Base(exe))
		if status, err := os.ReadFile("/proc/" + pid + "/status"); err != nil ||
			!strings.Contains(string(status), "Cpus_allowed_list:\t0\n") {
			t.Errorf("%s may run on other CPUs: %v\n%s", exe, err, status)
		}
	}
	if !vmm {
		t.Errorf("no VMM is in %s: %s", dir, members)
	}
}
