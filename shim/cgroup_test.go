package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/format"
)

// files makes a tree of files; a name that ends in / is a directory.
func files(t *testing.T, root string, content map[string]string) {
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

func content(t *testing.T, path string) string {
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
	files(t, root, map[string]string{"cpu,cpuacct/": "", "memory/": "", "pids/": "", "freezer/": ""})
	if err := os.Symlink("cpu,cpuacct", filepath.Join(root, "cpu")); err != nil {
		t.Fatal(err)
	}
	apart := t.TempDir()
	files(t, apart, map[string]string{"cpu/": "", "cpuacct/": "", "memory/": ""})
	for _, c := range []struct {
		name, root string
		unified    bool
		path       string
		want       []string
	}{
		{"own", root, true, "", []string{"godwit/ns.id"}},
		{"given", root, true, "/default/vm", []string{"default/vm"}},
		{"out of the root", root, true, "../../etc", []string{"etc"}},
		{"systemd", root, true, "kubepods-besteffort-pod1.slice:cri:abc",
			[]string{"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/cri-abc.scope"}},
		{"systemd's root", root, true, "-.slice:cri:abc", []string{"cri-abc.scope"}},
		{"v1", root, false, "/default/vm", []string{"cpu,cpuacct/default/vm", "memory/default/vm", "pids/default/vm"}},
		{"v1 apart", apart, false, "/default/vm", []string{"cpu/default/vm", "cpuacct/default/vm", "memory/default/vm"}},
	} {
		var want []string
		for _, w := range c.want {
			want = append(want, filepath.Join(c.root, w))
		}
		got, err := cgroupDirs(c.root, c.unified, c.path, "ns", "id")
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v, %s", c.name, err, diff)
		}
	}
}

// Under cgroup v2 every cgroup above hands the controllers down, the root first.
func TestMakeCgroupV2(t *testing.T) {
	root := t.TempDir()
	files(t, root, map[string]string{
		"cgroup.procs": "", "cgroup.subtree_control": "", "default/cgroup.procs": "", "default/cgroup.subtree_control": "",
	})
	dir := filepath.Join(root, "default", "vm")
	if err := makeCgroup([]string{dir}); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{root, filepath.Dir(dir)} {
		if got := content(t, filepath.Join(d, "cgroup.subtree_control")); got != "+pids" { // the last one written
			t.Errorf("%s hands down %q", d, got)
		}
	}
	if err := limitMemory([]string{dir}, 123); err != nil || content(t, filepath.Join(dir, "memory.max")) != "123" {
		t.Errorf("limit: %v", err)
	}
	if err := limitMemory([]string{filepath.Join(root, "none")}, 123); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("limit without a controller: %v", err)
	}
}

// A process leaves for the top of its hierarchy, and only if it is inside.
func TestLeaveCgroup(t *testing.T) {
	root := t.TempDir()
	files(t, root, map[string]string{"memory/cgroup.procs": "", "memory/default/cgroup.procs": "", "memory/default/vm/cgroup.procs": ""})
	dirs := []string{filepath.Join(root, "memory", "default", "vm")}
	top := filepath.Join(root, "memory", "cgroup.procs")
	if err := leave(dirs, 7); err != nil || content(t, top) != "" {
		t.Errorf("one who is not inside left: %v", err)
	}
	if err := join(dirs, 7); err != nil {
		t.Fatal(err)
	}
	if err := leave(dirs, 7); err != nil || content(t, top) != "7" {
		t.Errorf("leave: %v, %q", err, content(t, top))
	}
	if err := leave([]string{filepath.Join(root, "gone")}, 7); err != nil {
		t.Errorf("leave what is gone: %v", err)
	}
}

// Both versions of cgroups say what a VM costs.
func TestCost(t *testing.T) {
	root := t.TempDir()
	files(t, root, map[string]string{
		"v1/cpu/cgroup.procs": "", "v1/cpuacct/cpuacct.usage": "5000000\n", "v1/cpuacct/cpuacct.usage_percpu": "2000000 3000000 \n",
		"v1/memory/memory.usage_in_bytes": "1000\n", "v1/memory/memory.limit_in_bytes": "5000\n",
		"v1/memory/memory.stat": "cache 700\nrss 200\n", "v1/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
		"v2/cpu.stat": "usage_usec 5000\nuser_usec 1\n", "v2/memory.current": "1000\n", "v2/memory.max": "5000\n",
		"v2/memory.stat": "anon 200\nfile 700\n", "v2/memory.events": "low 0\noom 3\noom_kill 2\n",
		"none/memory.max": "max\n",
	})
	at := func(names ...string) (dirs []string) {
		for _, n := range names {
			dirs = append(dirs, filepath.Join(root, n))
		}
		return dirs
	}
	want := cost{own: 300, used: 1000, limit: 5000, cpu: 5000, oomKills: 2}
	must := func(names ...string) cost {
		c, err := costOf(at(names...))
		if err != nil {
			t.Error(err)
		}
		return c
	}
	if diff := cmp.Diff(want, must("v2"), cmp.AllowUnexported(cost{})); diff != "" {
		t.Errorf("v2: %s", diff)
	}
	want.perCPU = []uint64{2000000, 3000000}
	if diff := cmp.Diff(want, must("v1/cpu", "v1/cpuacct", "v1/memory"), cmp.AllowUnexported(cost{})); diff != "" {
		t.Errorf("v1: %s", diff)
	}
	if c := must("none", "gone"); c.limit != 0 || c.own != 0 {
		t.Errorf("no limit: %+v", c)
	}
}

// What a worker knows of each page is granted to the task: of RAM and of disks that are written to.
func TestMemoryCapCountsPages(t *testing.T) {
	w := newWorld(t)
	w.must("create", w.create())
	vm, _ := w.service.the()
	sp := vm.spec()
	pages := sp.Memory / format.PageSize
	for _, d := range sp.Disks {
		if !d.ReadOnly {
			pages += uint64(d.Size) / format.PageSize
		}
	}
	w.cfg.VM.Overhead = 0
	others := sp.Memory + sp.Memory/64 + vm.overhead + shimOverhead + 2*uint64(w.cfg.Worker.Memory)
	if diff := cmp.Diff(others+pages*snapshot.PageCost, vm.memoryCap()); diff != "" {
		t.Error(diff)
	}
	one := pageCost(&spec.Spec{Memory: 1 << 30, Disks: []spec.Disk{{Size: 1 << 30}, {Size: 1 << 40, ReadOnly: true}}})
	if diff := cmp.Diff(uint64(2<<30)/format.PageSize*snapshot.PageCost, one); diff != "" {
		t.Error(diff)
	}
	w.must("delete", w.delete())
}

// The shim lives in the task's cgroup from Create to Delete, under a limit of RAM and
// overhead; one that was there before keeps its owner's limit and stays.
func TestTaskCgroup(t *testing.T) {
	for _, shared := range []bool{false, true} {
		w := newWorld(t)
		root := t.TempDir()
		files(t, root, map[string]string{"cgroup.procs": ""})
		dir := filepath.Join(root, "vm")
		if shared {
			files(t, root, map[string]string{"vm/cgroup.procs": ""})
		}
		w.cgroup = []string{dir}
		w.cfg.VM.Overhead = 100 << 20
		w.must("create", w.create())
		self := strconv.Itoa(os.Getpid())
		if got := content(t, filepath.Join(dir, "cgroup.procs")); got != self {
			t.Errorf("members %q, want the shim, %s", got, self)
		}
		limit, err := os.ReadFile(filepath.Join(dir, "memory.max"))
		if shared != errors.Is(err, os.ErrNotExist) || !shared && string(limit) != strconv.Itoa((512+100)<<20) {
			t.Errorf("shared %v: limit %q, %v", shared, limit, err)
		}
		if !shared { // a real one has no files that could be in the way
			w.must("empty", os.Remove(filepath.Join(dir, "memory.max")))
		}
		vm, _ := w.service.the()
		if err := leave(vm.noted().Cgroup, os.Getpid()); err != nil || content(t, filepath.Join(root, "cgroup.procs")) != self {
			t.Errorf("leave: %v", err)
		}
		w.must("empty", os.Remove(filepath.Join(dir, "cgroup.procs")))
		w.must("delete", w.delete())
		if _, err := os.Stat(dir); shared == errors.Is(err, os.ErrNotExist) {
			t.Errorf("shared %v: the cgroup after the delete: %v", shared, err)
		}
	}
}

// A VMM that the host killed for its memory is told by another event than a container
// that met its own limit, and by its own reason.
func TestStarvedVMM(t *testing.T) {
	w := newWorld(t)
	root := t.TempDir()
	files(t, root, map[string]string{"cgroup.procs": ""})
	dir := filepath.Join(root, "vm")
	w.cgroup = []string{dir}
	w.running()
	files(t, dir, map[string]string{"memory.events": "oom_kill 1\n"})
	w.must("kill VMM", w.machine.Kill(t.Context()))
	if got := w.wait(""); got != killed {
		t.Errorf("exit status %d", got)
	}
	want := []string{"/tasks/create", "/tasks/start", StarvationTopic, "/tasks/exit"}
	if !eventually(func() bool { return slices.Equal(w.events.all(), want) }) {
		t.Errorf("events %v, want %v", w.events.all(), want)
	}
	vm, _ := w.service.the()
	if vm.endReason != OutOfMemory {
		t.Errorf("the VMM ended for %q", vm.endReason)
	}
}

// Two VMs may be given the same cgroup. The first one made it; its end is not the end of
// the second.
func TestReclaimSparesAnotherVMInTheCgroup(t *testing.T) {
	w := newWorld(t)
	first, second := w.cfg.VMDir("ns", "first"), w.cfg.VMDir("other", "second")
	id, err := w.process()
	w.must("start process", err)
	root := t.TempDir()
	files(t, root, map[string]string{"cgroup.procs": "", "vms/cgroup.procs": strconv.Itoa(id.PID)})
	dirs := []string{filepath.Join(root, "vms")}
	w.must("write journal", (&Journal{Phase: Own, Cgroup: dirs}).store(second))
	j := &Journal{Phase: Own, Cgroup: dirs, Private: dirs}
	w.must("write journal", j.store(first))
	w.must("reclaim the first", reclaim(t.Context(), w.host(), first, j))
	if _, err := os.Stat(dirs[0]); err != nil || !lives(id) {
		t.Errorf("the second VM's process is alive: %v; its cgroup: %v", lives(id), err)
	}
	w.must("forget the second", os.RemoveAll(second))
	w.must("write journal", j.store(first))
	_ = reclaim(t.Context(), w.host(), first, j) // a directory with a file in it stays
	if lives(id) {
		t.Error("what a VM left in its own cgroup lives")
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
			err := toTop(top, 7, func(dirs []string, _ int) error {
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
