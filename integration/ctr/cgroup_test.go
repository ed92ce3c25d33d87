//go:build integration

package ctr

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/integration/harness"
)

// taskCgroup is the memory cgroup of a task on its node, as this process reaches it.
func taskCgroup(n *harness.Node, vm string) string {
	if cgroups.Mode() == cgroups.Unified {
		return n.Cgroup("default", vm)
	}
	return n.Cgroup("memory", "default", vm)
}

// read answers the number in one of two files, of cgroup v1 or v2; name selects a line.
func read(t *testing.T, dir, one, two, name string) uint64 {
	t.Helper()
	file := one
	if cgroups.Mode() == cgroups.Unified {
		file = two
	}
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.TrimSpace(string(data))
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && key == name {
			text = value
		}
	}
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s of %s: %v", name, file, err)
	}
	return number
}

// testCgroup shows that shim and VMM live in the task's cgroup, whose limit is that of the whole VM and not the
// container's. The RAM that the guest uses is charged to it.
func testCgroup(t *testing.T, s *shim) {
	dir := taskCgroup(s.node, s.vm)
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	must(t, "read members", err)
	var programs []string
	for _, pid := range strings.Fields(string(data)) {
		exe, err := os.Readlink("/proc/" + pid + "/exe")
		must(t, "read member", err)
		programs = append(programs, filepath.Base(exe))
	}
	members := strings.Join(programs, " ")
	if !slices.Contains(programs, "containerd-shim-godwit-v1") || !slices.ContainsFunc(programs, harness.IsVMM) {
		t.Errorf("members of the cgroup are %s; shim or %s is not", members, harness.VMM())
	}
	q, err := s.machine.Query(s.ctx, &machinev1.QueryRequest{})
	must(t, "query", err)
	limit := read(t, dir, "memory.limit_in_bytes", "memory.max", "")
	if limit <= q.GetMemory() || limit > q.GetMemory()+2<<30 {
		t.Errorf("limit %d MiB of a VM with %d MiB of RAM", limit>>20, q.GetMemory()>>20)
	}
	const written = 48 << 20
	before, resident := read(t, dir, "memory.stat", "memory.stat", "shmem"), q.GetResident()
	s.exec(t, "write", fmt.Sprintf("dd if=/dev/urandom of=/dev/shm/x bs=1M count=%d", written>>20))
	if got := s.ended(t, "write"); got != 0 {
		t.Errorf("write in the guest: %d", got)
	}
	s.forget(t, "write")
	after := read(t, dir, "memory.stat", "memory.stat", "shmem")
	q, err = s.machine.Query(s.ctx, &machinev1.QueryRequest{})
	must(t, "query", err)
	t.Logf("charged %d then %d MiB, the RAM file has %d then %d MiB; limit %d MiB", before>>20, after>>20, resident>>20,
		q.GetResident()>>20, limit>>20)
	// Some of it went to pages that the guest had used and freed before.
	if after < before+written/4 || after < q.GetResident()*9/10 {
		t.Errorf("the guest wrote %d MiB: %d then %d MiB are charged, the RAM file has %d MiB", written>>20, before>>20,
			after>>20, q.GetResident()>>20)
	}
	s.exec(t, "remove", "rm /dev/shm/x")
	s.ended(t, "remove")
	s.forget(t, "remove")
}

// starve lowers the limit of the task's cgroup below what the VM needs, and has its guest
// take memory until the host kills the VMM.
func starve(t *testing.T, s *shim) {
	t.Helper()
	dir := taskCgroup(s.node, s.vm)
	file, used := "memory.limit_in_bytes", read(t, dir, "memory.usage_in_bytes", "memory.current", "")
	if cgroups.Mode() == cgroups.Unified {
		file = "memory.max"
	}
	must(t, "lower limit", os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatUint(used+16<<20, 10)), 0))
	s.exec(t, "eat", "exec tail /dev/zero")
}

// says waits until the log of a node's containerd, which has those of its shims, has a
// text.
func says(t *testing.T, h *harness.Harness, n *harness.Node, text string) {
	t.Helper()
	err := harness.Poll(t.Context(), stepTimeout, func(context.Context) error {
		log, err := os.ReadFile(filepath.Join(h.Dir, "log", n.Name+"-containerd.log"))
		if err == nil && !strings.Contains(string(log), text) {
			err = errors.New("it does not say so")
		}
		return err
	})
	if err != nil {
		t.Errorf("log of %s: %q: %v", n.Name, text, err)
	}
}
