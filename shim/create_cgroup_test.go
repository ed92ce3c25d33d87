package shim

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/events"
	"godwit.dev/godwit/shim/journal"
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

// What a worker knows of each page is granted to the task: of RAM and of disks that are written to.
func TestMemoryCapCountsPages(t *testing.T) {
	w := newWorld(t)
	w.must("create", w.create())
	vm, _ := w.service.current()
	sp := vm.spec()
	pages := sp.Memory / format.PageSize
	for _, d := range sp.Disks {
		if !d.ReadOnly {
			pages += uint64(d.Size) / format.PageSize
		}
	}
	w.cfg.VM.Overhead = 0
	others := sp.Memory + sp.Memory/64 + vm.vmm.facts().Overhead + shimOverhead + 2*uint64(w.cfg.Worker.Memory)
	if diff := cmp.Diff(others+pages*snapshot.PageCost, vm.memoryCap()); diff != "" {
		t.Error(diff)
	}
	one := pageCost(&spec.Spec{Memory: 1 << 30, Disks: []spec.Disk{{Size: 1 << 30}, {Size: 1 << 40, ReadOnly: true}}})
	if diff := cmp.Diff(uint64(2<<30)/format.PageSize*snapshot.PageCost, one); diff != "" {
		t.Error(diff)
	}
	w.must("delete", w.delete())
}

// The shim lives in the task's cgroup from Create to Delete, under a limit of RAM and overhead. A cgroup that was there
// before keeps its owner's limit and stays.
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
		vm, _ := w.service.current()
		if err := cgroup.Leave(vm.journal.Load().Cgroup, os.Getpid()); err != nil ||
			content(t, filepath.Join(root, "cgroup.procs")) != self {
			t.Errorf("leave: %v", err)
		}
		w.must("empty", os.Remove(filepath.Join(dir, "cgroup.procs")))
		w.must("delete", w.delete())
		if _, err := os.Stat(dir); shared == errors.Is(err, os.ErrNotExist) {
			t.Errorf("shared %v: the cgroup after the delete: %v", shared, err)
		}
	}
}

// A VMM that the host killed for its memory is told by an event and a reason of its own. The event of a container that
// met its own limit is another one.
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
	want := []string{"/tasks/create", "/tasks/start", events.StarvationTopic, "/tasks/exit"}
	if !eventually(func() bool { return slices.Equal(w.events.all(), want) }) {
		t.Errorf("events %v, want %v", w.events.all(), want)
	}
	vm, _ := w.service.current()
	if vm.vmm.reason() != events.OutOfMemory {
		t.Errorf("the VMM ended for %q", vm.vmm.reason())
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
	w.must("write journal", (&journal.Journal{Phase: journal.Own, Resources: journal.Resources{Cgroup: dirs}}).
		Write(second))
	j := &journal.Journal{Phase: journal.Own, Resources: journal.Resources{Cgroup: dirs, Private: dirs}}
	w.must("write journal", j.Write(first))
	w.must("reclaim the first", reclaim(t.Context(), w.host(), first, j))
	if _, err := os.Stat(dirs[0]); err != nil || !lives(id) {
		t.Errorf("the second VM's process is alive: %v; its cgroup: %v", lives(id), err)
	}
	w.must("forget the second", os.RemoveAll(second))
	w.must("write journal", j.Write(first))
	_ = reclaim(t.Context(), w.host(), first, j) // a directory with a file in it stays
	if lives(id) {
		t.Error("what a VM left in its own cgroup lives")
	}
}

// A pod whose cgroup has no room for its VMM and shim is refused by the limit and the cgroup, with the remedy.
func TestPodWithoutRoom(t *testing.T) {
	w := newWorld(t)
	w.must("create", w.createPod())
	vm, err := w.service.current()
	w.must("find VM", err)
	need := vm.vmm.facts().Overhead + shimOverhead
	if err := vm.pod.fitsCgroup(need, "/pod", nil); err != nil {
		t.Errorf("a limit that is enough: %v", err)
	}
	err = vm.pod.fitsCgroup(need-1, "/pod", nil)
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "/pod") ||
		!strings.Contains(err.Error(), "podFixed") {
		t.Errorf("a limit that is too low: %v", err)
	}
	if err := vm.pod.fitsCgroup(0, "", os.ErrPermission); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a limit that cannot be read: %v", err)
	}
}
