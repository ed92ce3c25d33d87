package shim

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/containerd/containerd/api/types"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/vmm"
)

// A VMM that was started and never written down is found in the VM's own cgroup. A process in a cgroup that Create
// found there is not the VM's.
func TestEmptyCgroup(t *testing.T) {
	w := newWorld(t)
	own, shared := filepath.Join(t.TempDir(), "own"), t.TempDir()
	if got := cgroup.Absent([]string{own, shared}); len(got) != 1 || got[0] != own {
		t.Fatalf("the VM's own are %v", got)
	}
	id, err := w.process()
	w.must("start process", err)
	w.must("make cgroup", cgroup.Make([]string{own}))
	pids := strconv.Itoa(os.Getpid()) + "\n0\n" + strconv.Itoa(id.PID) + "\n"
	w.must("write", os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte(pids), 0o600))
	_ = reclaim(t.Context(), w.host(), filepath.Join(t.TempDir(), "vm"), &journal.Journal{Phase: journal.Own,
		Resources: journal.Resources{Private: []string{own}}})
	if lives(id) {
		t.Error("a process in the cgroup lives")
	}
	w.must("empty what is gone", cgroup.Empty(t.Context(), []string{filepath.Join(own, "x")}))
}

// A Start that fails gives the network back at once, not with the Delete.
func TestFailedStartDetaches(t *testing.T) {
	w := newWorld(t)
	w.must("create", w.create())
	w.at("resume", func() error { return errFake })
	if err := w.start(); err == nil {
		t.Fatal("start succeeded")
	}
	if w.net.attached {
		t.Error("the network is attached")
	}
	w.must("delete", w.delete())
	w.nothingLeft()
}

// A restore removes the disk that an earlier task of the container has left, and Query
// names the VMM's version.
func TestRestoreForgetsTheOldDisk(t *testing.T) {
	w := newWorld(t).asleep()
	old := filepath.Join(t.TempDir(), "rw.ext4")
	w.must("write", os.WriteFile(old, []byte("old"), 0o600))
	r := w.bundle()
	r.Rootfs = []*types.Mount{{Source: old}}
	_, err := w.service.Create(ctxNS(t), r)
	w.must("create", err)
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the next fresh task would boot from the old disk: %v", err)
	}
	q, err := w.machineService().Query(t.Context(), &machinev1.QueryRequest{})
	if err != nil || q.GetVmmVersion() != "1.0" {
		t.Errorf("query = %v, %v", q, err)
	}
}

// After a restart of the host the holder's pid is another process's, and /proc leads to that one's network namespace:
// the host's own, as a rule, whose eth0 may have the same index as the VM's had. What is in it is not the shim's to
// mend.
func TestReclaimTouchesNoNamespaceOfAReusedPid(t *testing.T) {
	w := newWorld(t)
	other, err := w.process()
	w.must("start process", err)
	ns := "/proc/" + strconv.Itoa(other.PID) + "/ns/net"
	gone := proc.ID{PID: other.PID, StartTime: other.StartTime - 1, Boot: other.Boot}
	for _, c := range []struct {
		netns  string
		holder proc.ID
		vmm    *vmm.Process
		want   string
	}{
		{ns, gone, nil, ""},
		{ns, gone, &vmm.Process{PID: gone.PID, StartTime: gone.StartTime, Boot: gone.Boot}, ""},
		{ns, proc.ID{}, nil, ""},
		{"/run/netns/a", proc.ID{}, nil, "/run/netns/a"},
		// The process that the path names may be another by now; those of the VM are in it.
		{"/proc/1/ns/net", other, nil, ns},
		{"/proc/1/ns/net", gone, &vmm.Process{PID: other.PID, StartTime: other.StartTime, Boot: other.Boot}, ns},
	} {
		w.net.detached = ""
		j := &journal.Journal{Phase: journal.Own, Resources: journal.Resources{NetNS: c.netns, Holder: c.holder,
			Process: c.vmm, Links: w.links}}
		if err := detach(t.Context(), w.host(), j, j.Links); err != nil || w.net.detached != c.want {
			t.Errorf("%s under holder %v, VMM %v: detached in %q, %v; want %q", c.netns, c.holder, c.vmm, w.net.detached,
				err, c.want)
		}
		if c.want == ns {
			continue // free would end the process
		}
		w.net.detached = ""
		if err := reclaim(t.Context(), w.host(), filepath.Join(t.TempDir(), "vm"), j); err != nil ||
			w.net.detached != c.want {
			t.Errorf("reclaim with %s: detached in %q, %v; want %q", c.netns, w.net.detached, err, c.want)
		}
	}
	if !lives(other) {
		t.Error("a process with the holder's pid was killed")
	}
}
