package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// makeTree makes a tree of files; a name that ends in / is a directory.
func makeTree(t *testing.T, root string, content map[string]string) {
	t.Helper()
	for name, text := range content {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if filepath.Base(name) == "." || name[len(name)-1] == '/' {
			if err := os.MkdirAll(path, 0o700); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The task's cgroup lies where config.json says, in every hierarchy of the host that
// counts something of a VM.
func TestCgroupDirs(t *testing.T) {
	root := t.TempDir()
	makeTree(t, root, map[string]string{"cpu,cpuacct/": "", "memory/": "", "pids/": "", "freezer/": ""})
	if err := os.Symlink("cpu,cpuacct", filepath.Join(root, "cpu")); err != nil {
		t.Fatal(err)
	}
	apart := t.TempDir()
	makeTree(t, apart, map[string]string{"cpu/": "", "cpuacct/": "", "memory/": "", "cpuset/": ""})
	for _, c := range []struct {
		name, root string
		unified    bool
		path       string
		set        Cpuset
		want       []string
	}{
		{"own", root, true, "", Cpuset{}, []string{"godwit/ns.id"}},
		{"given", root, true, "/default/vm", Cpuset{}, []string{"default/vm"}},
		{"out of the root", root, true, "../../etc", Cpuset{}, []string{"etc"}},
		{"systemd", root, true, "kubepods-besteffort-pod1.slice:cri:abc", Cpuset{},
			[]string{"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/cri-abc.scope"}},
		{"systemd's root", root, true, "-.slice:cri:abc", Cpuset{}, []string{"cri-abc.scope"}},
		{"v1", root, false, "/default/vm", Cpuset{},
			[]string{"cpu,cpuacct/default/vm", "memory/default/vm", "pids/default/vm"}},
		{"v1 with a cpuset", apart, false, "/vm", Cpuset{CPUs: "0"},
			[]string{"cpu/vm", "cpuacct/vm", "memory/vm", "cpuset/vm"}},
		{"v1 without the controller", root, false, "/vm", Cpuset{Mems: "0"},
			[]string{"cpu,cpuacct/vm", "memory/vm", "pids/vm"}},
		{"v1 apart", apart, false, "/default/vm", Cpuset{},
			[]string{"cpu/default/vm", "cpuacct/default/vm", "memory/default/vm"}},
	} {
		var want []string
		for _, w := range c.want {
			want = append(want, filepath.Join(c.root, w))
		}
		got, err := DirsBelow(c.root, c.unified, c.path, "ns", "id", c.set)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v, %s", c.name, err, diff)
		}
	}
}

// Under cgroup v2 every cgroup above hands the controllers down, the root first.
func TestMakeCgroupV2(t *testing.T) {
	root := t.TempDir()
	makeTree(t, root, map[string]string{
		"cgroup.procs": "", "cgroup.subtree_control": "", "default/cgroup.procs": "", "default/cgroup.subtree_control": "",
	})
	dir := filepath.Join(root, "default", "vm")
	if err := Make([]string{dir}); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{root, filepath.Dir(dir)} {
		if got := read(t, filepath.Join(d, "cgroup.subtree_control")); got != "+pids" { // the last one written
			t.Errorf("%s hands down %q", d, got)
		}
	}
	if err := LimitMemory([]string{dir}, 123); err != nil || read(t, filepath.Join(dir, "memory.max")) != "123" {
		t.Errorf("limit: %v", err)
	}
	if err := LimitMemory([]string{filepath.Join(root, "none")}, 123); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("limit without a controller: %v", err)
	}
}

// A process leaves for the top of its hierarchy, and only if it is inside.
func TestLeaveCgroup(t *testing.T) {
	root := t.TempDir()
	makeTree(t, root, map[string]string{"memory/cgroup.procs": "", "memory/default/cgroup.procs": "",
		"memory/default/vm/cgroup.procs": ""})
	dirs := []string{filepath.Join(root, "memory", "default", "vm")}
	top := filepath.Join(root, "memory", "cgroup.procs")
	if err := Leave(dirs, 7); err != nil || read(t, top) != "" {
		t.Errorf("one who is not inside left: %v", err)
	}
	if err := Join(dirs, 7); err != nil {
		t.Fatal(err)
	}
	if err := Leave(dirs, 7); err != nil || read(t, top) != "7" {
		t.Errorf("leave: %v, %q", err, read(t, top))
	}
	if err := Leave([]string{filepath.Join(root, "gone")}, 7); err != nil {
		t.Errorf("leave what is gone: %v", err)
	}
}

// Both versions of cgroups say what a VM costs.
func TestCost(t *testing.T) {
	root := t.TempDir()
	makeTree(t, root, map[string]string{
		"v1/cpu/cgroup.procs": "", "v1/cpuacct/cpuacct.usage": "5000000\n",
		"v1/cpuacct/cpuacct.usage_percpu": "2000000 3000000 \n",
		"v1/memory/memory.usage_in_bytes": "1000\n", "v1/memory/memory.limit_in_bytes": "5000\n",
		"v1/memory/memory.stat":        "cache 700\nrss 200\ninactive_file 60\n",
		"v1/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
		"v2/cpu.stat":                  "usage_usec 5000\nuser_usec 1\n", "v2/memory.current": "1000\n",
		"v2/memory.max":  "5000\n",
		"v2/memory.stat": "anon 200\nfile 700\ninactive_file 60\n", "v2/memory.events": "low 0\noom 3\noom_kill 2\n",
		"none/memory.max": "max\n",
	})
	at := func(names ...string) (dirs []string) {
		for _, n := range names {
			dirs = append(dirs, filepath.Join(root, n))
		}
		return dirs
	}
	want := Cost{Own: 300, Used: 1000, Limit: 5000, CPU: 5000, Anon: 200, Inactive: 60, OOMKills: 2}
	must := func(names ...string) Cost {
		c, err := CostOf(at(names...))
		if err != nil {
			t.Error(err)
		}
		return c
	}
	if diff := cmp.Diff(want, must("v2"), cmp.AllowUnexported(Cost{})); diff != "" {
		t.Errorf("v2: %s", diff)
	}
	want.PerCPU = []uint64{2000000, 3000000}
	if diff := cmp.Diff(want, must("v1/cpu", "v1/cpuacct", "v1/memory"), cmp.AllowUnexported(Cost{})); diff != "" {
		t.Errorf("v1: %s", diff)
	}
	if c := must("none", "gone"); c.Limit != 0 || c.Own != 0 {
		t.Errorf("no limit: %+v", c)
	}
}

// Where the top takes no process, as in a container with cgroup v2, one below it does.
func TestLeaveWhereTheTopIsNoRoot(t *testing.T) {
	top := t.TempDir()
	busy := &os.PathError{Op: "write", Path: top, Err: unix.EBUSY}
	for name, tt := range map[string]struct {
		refused error
		want    []string
	}{
		"root":    {nil, []string{top}},
		"no root": {busy, []string{top, filepath.Join(top, "godwit-shims")}},
		"gone":    {os.ErrNotExist, []string{top}},
	} {
		t.Run(name, func(t *testing.T) {
			var tried []string
			err := moveToTop(top, 7, func(dirs []string, _ int) error {
				tried = append(tried, dirs...)
				if dirs[0] == top && tt.refused != nil {
					return fmt.Errorf("join cgroup: %w", tt.refused)
				}
				return nil
			})
			if !slices.Equal(tried, tt.want) || (err != nil) != (tt.refused != nil && len(tt.want) == 1) {
				t.Errorf("tried %v, %v", tried, err)
			}
		})
	}
}
