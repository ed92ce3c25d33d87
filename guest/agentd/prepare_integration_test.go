//go:build integration

package agentd

import (
	"fmt"
	"os"
	"testing"

	agentv1 "godwit.dev/godwit/api/agent/lean"
)

// A guest that was prepared for a pod has its two first processes and the fork server: neither SetupPod, nor the first
// container, nor an exec starts a program. Each is in the cgroup and the namespaces that it has otherwise.
func TestPreparedPod(t *testing.T) {
	if !inGuest(t) {
		return
	}
	s := newGuest(t)
	s.opts.Hold = func() error { return nil }
	if _, err := s.Prepare(t.Context(), &agentv1.PrepareRequest{Pod: true}); err != nil {
		t.Fatal(err)
	}
	begun := func() int {
		s.children.mu.Lock()
		defer s.children.mu.Unlock()
		return len(s.children.runs)
	}
	if n := begun(); n != 3 {
		t.Fatalf("%d processes wait, want 3", n)
	}
	if _, err := s.SetupPod(t.Context(), &agentv1.SetupPodRequest{Hostname: "h"}); err != nil {
		t.Fatal(err)
	}
	add := &agentv1.AddContainerRequest{Container: "c1", Setup: &agentv1.SetupRequest{}}
	if _, err := s.AddContainer(t.Context(), add); err != nil {
		t.Fatal(err)
	}
	if n := begun(); n != 3 {
		t.Errorf("%d processes after the first container, want the 3 that waited", n)
	}
	if s.forks.server.Load() == nil {
		t.Error("no fork server waits")
	}
	p := s.pod.Load()
	if got := p.pause.container().id; got != podID {
		t.Errorf("the process that holds the namespaces is of %q", got)
	}
	procs, err := os.ReadFile(string(p.cgroup.below(podID)) + "/cgroup.procs")
	if err != nil || string(procs) != fmt.Sprintln(p.pause.pid) {
		t.Errorf("processes of the pod's own cgroup: %q, %v, want %d", procs, err, p.pause.pid)
	}
	uts, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/uts", p.pause.pid))
	if err != nil {
		t.Fatal(err)
	}
	ours, err := os.Readlink("/proc/self/ns/uts")
	if err != nil || uts == ours {
		t.Errorf("uts namespace %s, ours is %s, %v", uts, ours, err)
	}
}
