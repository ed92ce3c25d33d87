//go:build integration

package k8s

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

const (
	sleeper = "sleeper" // the VM of this test
	// away is how long the API server is away in a move. The VM goes on, and so does the move afterwards.
	away = 8 * time.Second
	// endsBy is when an operator that is told to end has ended.
	endsBy = 15 * time.Second
)

// owner is the node that has the VM, as its record in the API server says; empty: it sleeps.
func (s site) owner() string {
	s.t.Helper()
	return s.ofSleeper(".summary.owner")
}

// ofSleeper is a field of the VM's record. Other cases have records of their own.
func (s site) ofSleeper(field string) string {
	s.t.Helper()
	return s.kubectl("get", "vmrecords", "-o", `jsonpath={.items[?(@.spec.vm.id=="`+sleeper+`")]`+field+`}`)
}

// knows compares what the VM has in its memory.
func (s site) knows(n *harness.Node, want string) {
	s.t.Helper()
	if got := strings.TrimSpace(n.Ctr(s.t, "task", "exec", "--exec-id", fmt.Sprint("x", time.Now().UnixNano()), sleeper,
		"cat", "/dev/shm/nonce")); got != want {
		s.t.Errorf("on %s the VM knows %q, not %q", n.Name, got, want)
	}
}

// TestOperatorServes: a VM of containerd, that no object of Kubernetes knows, sleeps, wakes on another node and moves
// back live. The operators are killed in the midst of a move, and so is the API server in another.
func TestOperatorServes(t *testing.T) {
	s := openMachines(t)
	b, c := s.Node(0), s.Node(1)
	if err := b.ImportStandard(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.Ctr(t, "run", "-d", "--runtime", "io.containerd.godwit.v1", images.Busybox, sleeper, "sleep", "100000")
	nonce := strings.TrimSpace(b.Ctr(t, "task", "exec", "--exec-id", "first", sleeper, "sh", "-c",
		"cat /proc/sys/kernel/random/uuid | tee /dev/shm/nonce"))
	if s.owner() != b.Name {
		t.Errorf("the record says that %q has the VM", s.owner())
	}
	b.Godwit(t, "hibernate", sleeper)
	if vmms, err := b.VMMs(); err != nil || len(vmms) > 0 {
		t.Errorf("VMMs of a VM that sleeps: %v, %v", vmms, err)
	}
	c.Godwit(t, "wake", "--on", c.Name, sleeper)
	s.knows(c, nonce)
	if out, err := c.RunGodwit(t.Context(), "migrate", "--to", "godwit-operator", sleeper); err == nil ||
		!strings.Contains(err.Error()+out, "controller without VMs") {
		t.Errorf("move to the controller: %q, %v", out, err)
	}
	// Earlier its order may not be answered yet, and the command would not know of the move.
	s.moves(c, b, "Transferring", func() {
		if err := Kill(operatorProgram, s.Nodes()...); err != nil {
			t.Fatal(err)
		}
	})
	s.knows(b, nonce)
	s.moves(b, c, "", func() {
		if err := s.api.Kill(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(away)
		if err := s.startServer(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	s.knows(c, nonce)
	s.removed(c)
	s.endSoon()
}

// endSoon: the operators end soon, also while no API server answers.
func (s site) endSoon() {
	s.t.Helper()
	before, err := running(operatorProgram, s.Nodes()...)
	if err = errors.Join(err, s.api.Kill(), signal(operatorProgram, syscall.SIGTERM, s.Nodes()...)); err != nil {
		s.t.Fatal(err)
	}
	if err := harness.Poll(s.t.Context(), endsBy, func(context.Context) error {
		now, err := running(operatorProgram, s.Nodes()...)
		if slices.ContainsFunc(before, func(pid int) bool { return slices.Contains(now, pid) }) {
			err = fmt.Errorf("of the operators %v these run: %v", before, now)
		}
		return err
	}); err != nil {
		s.t.Error(err)
	}
	if err := s.startServer(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	s.kubectl("rollout", "status", "-n", system, "--timeout="+limit.String(), "deployment/godwit-operator")
}

// moves moves the VM live, and lets a fault happen once the move is open, and at a phase if one is named. Afterwards
// the VM runs at the destination and nowhere else.
func (s site) moves(from, to *harness.Node, at string, fault func()) {
	s.t.Helper()
	moved := make(chan error, 1)
	go func() {
		_, err := from.RunGodwit(s.t.Context(), "migrate", "--to", to.Name, "--mode", "live", "--bandwidth", "24MiB", sleeper)
		moved <- err
	}()
	if err := harness.Poll(s.t.Context(), time.Minute, func(context.Context) error {
		if s.ofSleeper(".summary.operation") == "" {
			return fmt.Errorf("no move is open")
		}
		if at == "" {
			return nil
		}
		if phase := s.ofSleeper(".summary.phase"); phase != at {
			return fmt.Errorf("the move is in phase %q", phase)
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
	fault()
	if err := <-moved; err != nil {
		s.t.Errorf("move to %s: %v", to.Name, err)
	}
	if got := s.owner(); got != to.Name {
		s.t.Errorf("after the move the record says that %q has the VM", got)
	}
	for n, want := range map[*harness.Node]int{from: 0, to: 1} {
		if vmms, err := n.VMMs(); err != nil || len(vmms) != want {
			s.t.Errorf("after the move to %s, node %s has the VMMs %v: %v", to.Name, n.Name, vmms, err)
		}
	}
}

// removed ends the VM. Its record goes, and the nodes delete its snapshots.
func (s site) removed(n *harness.Node) {
	s.t.Helper()
	n.Ctr(s.t, "task", "rm", "--force", sleeper)
	n.Ctr(s.t, "container", "rm", sleeper)
	if out, err := n.RunGodwit(s.t.Context(), "rm", "-f", sleeper); err != nil && !strings.Contains(err.Error(), "no VM") {
		s.t.Errorf("%s: %v", out, err)
	}
	if err := harness.Poll(s.t.Context(), time.Minute, func(context.Context) error {
		if left := s.ofSleeper(".metadata.name"); left != "" {
			return fmt.Errorf("left: %s", left)
		}
		return nil
	}); err != nil {
		s.t.Error(err)
	}
}
