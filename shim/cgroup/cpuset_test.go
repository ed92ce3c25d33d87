package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// A list of CPUs or memory nodes is given to the cgroup, or refused by the name of its field.
func TestPin(t *testing.T) {
	two := map[string]string{"cgroup.procs": "", "cgroup.controllers": "cpuset", "cgroup.subtree_control": "",
		"cpuset.cpus.effective": "0-1\n", "cpuset.mems.effective": "0\n", "vm/cgroup.procs": "",
		"vm/cgroup.controllers": "cpuset", "vm/cpuset.cpus": "", "vm/cpuset.mems": ""}
	one := map[string]string{"cgroup.procs": "", "cpuset.cpus": "0-1\n", "cpuset.mems": "0\n",
		"cpuset.effective_cpus": "0-1\n", "cpuset.effective_mems": "0\n", "vm/cgroup.procs": "", "vm/cpuset.cpus": "\n",
		"vm/cpuset.mems": "\n"}
	none := map[string]string{"cgroup.procs": "", "cgroup.controllers": "memory", "cgroup.subtree_control": "",
		"vm/cgroup.procs": "", "vm/cgroup.controllers": "memory"}
	for name, c := range map[string]struct {
		tree     map[string]string
		set      Cpuset
		shared   bool
		err      string
		is       func(error) bool
		cpusMems [2]string // of the cgroup afterwards
	}{
		"v2":               {tree: two, set: Cpuset{CPUs: "1"}, cpusMems: [2]string{"1", ""}},
		"v1":               {tree: one, set: Cpuset{CPUs: "1"}, cpusMems: [2]string{"1", "0"}},
		"v1, memory nodes": {tree: one, set: Cpuset{Mems: "0"}, cpusMems: [2]string{"0-1", "0"}},
		"both":             {tree: two, set: Cpuset{CPUs: "0,1", Mems: "0"}, cpusMems: [2]string{"0,1", "0"}},
		"missing CPU": {tree: two, set: Cpuset{CPUs: "1-2"},
			err: "linux.resources.cpu.cpus: \"1-2\": this host has the CPUs 0-1",
			is:  errdefs.IsInvalidArgument},
		"missing node": {tree: one, set: Cpuset{Mems: "1"}, err: "linux.resources.cpu.mems", is: errdefs.IsInvalidArgument},
		"no list":      {tree: two, set: Cpuset{CPUs: "all"}, err: "0-2,7", is: errdefs.IsInvalidArgument},
		"backwards":    {tree: two, set: Cpuset{CPUs: "1-0"}, err: "0-2,7", is: errdefs.IsInvalidArgument},
		"huge":         {tree: two, set: Cpuset{CPUs: "0-4000000000"}, err: "0-2,7", is: errdefs.IsInvalidArgument},
		"no controller": {tree: none, set: Cpuset{CPUs: "0"}, err: "linux.resources.cpu.cpus",
			is: errdefs.IsNotImplemented},
		"of another owner": {tree: two, set: Cpuset{CPUs: "0"}, shared: true, err: "was there before",
			is: errdefs.IsFailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			makeTree(t, root, c.tree)
			dir := filepath.Join(root, "vm")
			made := []string{dir}
			if c.shared {
				made = nil
			}
			err := Pin([]string{dir}, made, c.set)
			if c.err != "" {
				if err == nil || !c.is(err) || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v", err)
				}
				return
			}
			got := [2]string{strings.TrimSpace(read(t, filepath.Join(dir, cpusFile))),
				strings.TrimSpace(read(t, filepath.Join(dir, memsFile)))}
			if err != nil || got != c.cpusMems {
				t.Errorf("%q, %v, want %q", got, err, c.cpusMems)
			}
		})
	}
}

// TestPinProcess has a process in a real cgroup of this host: it runs on the CPU that was asked for alone.
func TestPinProcess(t *testing.T) {
	set := Cpuset{CPUs: "0"}
	dirs, err := Dirs("/godwit-test/"+strconv.Itoa(os.Getpid()), "", "", set)
	if err != nil {
		t.Fatal(err)
	}
	made := Absent(dirs)
	if os.Geteuid() != 0 || len(made) != len(dirs) || Make(dirs) != nil {
		t.Skip("needs root, and a host whose cgroups can be changed")
	}
	t.Cleanup(func() {
		if err := Remove(made); err != nil {
			t.Error(err)
		}
		for _, d := range made {
			_ = os.Remove(filepath.Dir(d))
		}
	})
	if err := Pin(dirs, made, set); errdefs.IsNotImplemented(err) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cat")
	held, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { held.Close(); _ = cmd.Wait() }()
	if err := Join(dirs, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	status := read(t, filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "status"))
	if !strings.Contains(status, "Cpus_allowed_list:\t0\n") {
		t.Errorf("the process may run on other CPUs:\n%s", status)
	}
}
