//go:build integration

package nerdctl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/images"
)

// What a VM cannot honour is refused by its name and with the remedy, and leaves nothing.
func (s *site) testRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, ids := range []string{"/etc/subuid", "/etc/subgid"} {
		s.write(t, ids, "root:100000:65536\n")
	}
	for name, c := range map[string]struct {
		flags []string
		words []string
	}{
		"host network":     {[]string{"--net", "host"}, []string{"linux.namespaces network", "--net=host", "host_network"}},
		"host pids":        {[]string{"--pid", "host"}, []string{"linux.namespaces pid", "--pid=host"}},
		"host ipc":         {[]string{"--ipc", "host"}, []string{"linux.namespaces ipc", "--ipc=host"}},
		"host uts":         {[]string{"--uts", "host"}, []string{"linux.namespaces uts", "--uts=host"}},
		"device":           {[]string{"--device", "/dev/fuse"}, []string{"linux.devices /dev/fuse"}},
		"all devices":      {[]string{"--privileged"}, []string{"linux.devices /dev/", "privileged-without-host-devices"}},
		"writable bind":    {[]string{"-v", dir + ":/x"}, []string{"mount /x", dir, "read-only", "godwit.dev/volumes=copy"}},
		"named volume":     {[]string{"-v", "data:/x"}, []string{"mount /x", "godwit.dev/volumes=copy"}},
		"view of the host": {[]string{"-v", "/proc:/x:ro"}, []string{"mount /x", "belongs to the host's kernel"}},
		"swappiness":       {[]string{"--memory-swappiness", "10"}, []string{"memory.swappiness"}},
		"no OOM killer":    {[]string{"--oom-kill-disable"}, []string{"memory.disableOOMKiller"}},
		"device bandwidth": {[]string{"--device-read-bps", "/dev/loop0:1mb"}, []string{"linux.resources.blockIO"}},
		"missing CPU": {[]string{"--cpuset-cpus", "4096"},
			[]string{"linux.resources.cpu.cpus", "this host has the CPUs"}},
		"RDT class":     {[]string{"--rdt-class", "gold"}, []string{"linux.intelRdt"}},
		"exploded root": {[]string{"--rootfs"}, []string{"no root file system mount", "snapshotter"}},
		"realtime":      {[]string{"--cpu-rt-runtime", "1000"}, []string{"realtime"}},
		"no such user":  {[]string{"--user", "nobody-here"}, []string{"no users found"}},
		"half a pod of CRI": {[]string{"--annotation", "io.kubernetes.cri.container-type=sandbox"},
			[]string{"io.kubernetes.cri.sandbox-id", "it is empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"run", "--rm", "--runtime", runtimeName}, c.flags...)
			r := s.nerdctl(t, append(args, images.Busybox, "true")...)
			if r.code == 0 {
				t.Fatalf("it ran: %+v", r)
			}
			for _, word := range c.words {
				if !strings.Contains(r.errs, word) {
					t.Errorf("%q is not in %s", word, r.errs)
				}
			}
		})
	}
	if left := s.ok(t, "ps", "-aq"); left != "" {
		t.Errorf("containers are left: %s", left)
	}
	s.ok(t, "volume", "rm", "data")
}
