package bundle

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/spec"
)

// What clients set by themselves goes on and is noted, what a user has named is refused by its field: of a container
// and of an exec.
func TestLabels(t *testing.T) {
	for _, c := range []struct {
		name, apparmor, selinux, mount string
		refused                        string
	}{
		{name: "none"},
		{name: "containerd's CRI", apparmor: "cri-containerd.apparmor.d",
			selinux: "system_u:system_r:container_t:s0:c1,c2", mount: "system_u:object_r:container_file_t:s0:c1,c2"},
		{name: "nerdctl", apparmor: "nerdctl-default"},
		{name: "docker", apparmor: "docker-default", mount: "system_u:object_r:container_ro_file_t:s0"},
		{name: "no profile", apparmor: "unconfined", selinux: "system_u:system_r:spc_t:s0"},
		{name: "a profile of the user", apparmor: "mine",
			refused: `process.apparmorProfile: nothing in a VM enforces "mine"`},
		{name: "a type of the user", selinux: "system_u:system_r:mine_t:s0", refused: "process.selinuxLabel"},
		{name: "no label", selinux: "container_t", refused: "process.selinuxLabel"},
		{name: "files of the user", mount: "system_u:object_r:mine_file_t:s0", refused: "linux.mountLabel"},
	} {
		t.Run(c.name, func(t *testing.T) {
			check := func(what string, notes []string, err error, refused bool) {
				if refused {
					if err == nil || !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), c.refused) ||
						!strings.Contains(err.Error(), "leave it out") {
						t.Errorf("%s: %v", what, err)
					}
				} else if err != nil || (c.apparmor != "") != strings.Contains(strings.Join(notes, "\n"), "AppArmor") {
					t.Errorf("%s: %v, notes %q", what, err, notes)
				}
			}
			b, err := load(t, generate(t, edit(func(s *specs.Spec) {
				s.Process.ApparmorProfile, s.Process.SelinuxLabel, s.Linux.MountLabel = c.apparmor, c.selinux, c.mount
			})))
			var notes []string
			if b != nil {
				notes = b.Notes
			}
			check("container", notes, err, c.refused != "")
			p, err := json.Marshal(specs.Process{Args: []string{"sh"}, Cwd: "/", ApparmorProfile: c.apparmor,
				SelinuxLabel: c.selinux})
			if err != nil {
				t.Fatal(err)
			}
			_, notes, err = ExecProcess(p, false, false)
			check("exec", notes, err, c.refused != "" && c.mount == "")
			_, notes, err = ExecProcess(p, false, true)
			check("exec in a pod", notes, err, false)
		})
	}
}

// A cpuset is for the host's cgroup of the task. Neither the guest nor another node is told of it.
func TestCpuset(t *testing.T) {
	b, err := load(t, generate(t, edit(func(s *specs.Spec) {
		s.Linux.Resources.CPU = &specs.LinuxCPU{Cpus: "0-1", Mems: "0"}
	})))
	if err != nil {
		t.Fatal(err)
	}
	if b.CPUs != "0-1" || b.Mems != "0" {
		t.Errorf("CPUs %q, memory nodes %q", b.CPUs, b.Mems)
	}
	if c := b.Spec.Container.OCI.Linux.Resources.CPU; c.Cpus != "" || c.Mems != "" {
		t.Errorf("the Spec has a cpuset of this host: %+v", c)
	}
}

// What a container of a pod asks of the host is noted, as before. An Update with the same cpuset is accepted.
func TestLabelsAndCpusetOfPods(t *testing.T) {
	b, err := load(t, member(t, edit(func(s *specs.Spec) {
		s.Process.ApparmorProfile, s.Process.SelinuxLabel = "mine", "system_u:system_r:mine_t:s0"
		s.Linux.MountLabel = "system_u:object_r:mine_file_t:s0"
		s.Linux.Resources.CPU = &specs.LinuxCPU{Cpus: "0-1"}
	})))
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"AppArmor", "selinuxLabel", "mountLabel", "cpuset"} {
		if !strings.Contains(strings.Join(b.Notes, "\n"), word) {
			t.Errorf("no note of %s: %q", word, b.Notes)
		}
	}
	vm := &spec.Spec{VCPUs: 1, Pod: &spec.Pod{}}
	if r, err := b.ReadUpdate([]byte(`{"cpu":{"cpus":"0-1","shares":5}}`), nil, vm); err != nil || r.CPU.Cpus != "" {
		t.Errorf("the cpuset as before: %+v, %v", r, err)
	}
	_, err = b.ReadUpdate([]byte(`{"cpu":{"cpus":"1"}}`), nil, vm)
	if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "share one VM") {
		t.Errorf("another cpuset: %v", err)
	}
}
