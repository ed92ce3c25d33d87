//go:build integration

package k8s

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/observer"
)

// beaconAt is where the wire hears the VMs of these cases.
var beaconAt = net.JoinHostPort(harness.Gateway, "9999")

const checkpointOf = `{"apiVersion": "godwit.dev/v1alpha1", "kind": "VMOperation", "metadata": {"name": %q},
	"spec": {"vmRef": {"name": "survivor"}, "kind": "Checkpoint"}}`

// quietFor is how long nothing may happen to a VM whose node is away.
const quietFor = 10 * time.Second

// crash ends all that runs on a node, as a loss of power does.
func (s site) crash(n *harness.Node) {
	s.t.Helper()
	for _, p := range []*harness.Process{s.Kubelet(n), n.Containerd} {
		if err := p.Kill(); err != nil {
			s.t.Fatal(err)
		}
	}
	all, err := everything(n)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, pid := range all {
		if pid != n.PID() {
			_ = syscall.Kill(pid, syscall.SIGKILL) // one that has ended since is none
		}
	}
}

// boots starts a node again.
func (s site) boots(n *harness.Node) {
	s.t.Helper()
	for _, start := range []func(context.Context) error{n.StartContainerd,
		func(ctx context.Context) error { return s.StartKubelet(ctx, n) }} {
		if err := start(context.WithoutCancel(s.t.Context())); err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestNodeLost: a node dies with a VM, or is cut off while its VM runs. That changes conditions only. Once somebody
// vouches by a taint that the node runs nothing, the VM goes on elsewhere from its last checkpoint. The node that comes
// back ends what it has: the wire hears one VM alone.
func TestNodeLost(t *testing.T) {
	for _, c := range []struct {
		name, taint string
		lose        func(s site, n *harness.Node) (back func())
	}{
		{"dead", "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute", func(s site, n *harness.Node) func() {
			s.crash(n)
			return func() { s.boots(n) }
		}},
		{"cut off", "godwit.dev/fenced=:NoSchedule", func(s site, n *harness.Node) func() {
			plug, err := n.Unplug(s.t.Context())
			if err != nil {
				s.t.Fatal(err)
			}
			return func() {
				if err := plug(); err != nil {
					s.t.Error(err)
				}
			}
		}},
	} {
		// An order stays when the VM of its name is gone: each case has one of its own.
		t.Run(c.name, func(t *testing.T) { lost(t, "saved-"+c.name[:3], c.taint, c.lose) })
	}
}

func lost(t *testing.T, checkpoint, taint string, lose func(site, *harness.Node) func()) {
	s := openMachines(t)
	conn, err := s.ListenPacket(beaconAt)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	watch := observer.Watch(conn)
	s.apply("survivor")
	s.wait("condition=Ready", "gvm/survivor")
	if err := s.Apply(t.Context(), fmt.Sprintf(checkpointOf, checkpoint)); err != nil {
		t.Fatal(err)
	}
	s.wait("jsonpath={.status.phase}=Succeeded", "vmop/"+checkpoint)
	pod := s.pod("survivor-g1-a0")
	before := watch.Latest()
	back := lose(s, pod.node)
	came := false
	t.Cleanup(func() {
		if !came {
			back()
		}
		if t.Failed() { // else it was taken away
			_, _ = s.Kubectl(context.WithoutCancel(t.Context()), "taint", "node", pod.node.Name, taint+"-")
		}
	})
	lostAt := time.Now()
	s.kubectl("wait", "node/"+pod.node.Name, "--for=condition=Ready=Unknown", "--timeout="+limit.String())
	t.Logf("not ready after %.1f s", time.Since(lostAt).Seconds())
	time.Sleep(quietFor)
	state := []string{"get", "gvm", "survivor", "-o",
		"jsonpath={.status.owner.node} {.status.generation} {.status.operation.id}"}
	if got, want := s.kubectl(state...), pod.node.Name+" 1"; got != want {
		t.Errorf("%v after the loss the VM is %q, want %q", quietFor, got, want)
	}
	if got := s.kubectl("get", "pods", "-l", "godwit.dev/vm=survivor", "-o", "name"); got != "pod/survivor-g1-a0" {
		t.Errorf("its pods are %q", got)
	}
	s.kubectl("taint", "node", pod.node.Name, taint)
	vouched := time.Now()
	for _, n := range s.Nodes() {
		if n != pod.node {
			s.kubectl("wait", "gvm/survivor", "--for=jsonpath={.status.owner.node}="+n.Name, "--timeout="+limit.String())
		}
	}
	s.wait("condition=Ready", "gvm/survivor")
	t.Logf("ready elsewhere %.1f s after the taint", time.Since(vouched).Seconds())
	s.heard(watch, before.Counter)
	now := watch.Latest()
	if now.Nonce != before.Nonce {
		t.Errorf("what runs now is %q, and was %q", now.Nonce, before.Nonce)
	}
	doubles, wentBack := watch.Twice()
	came = true
	back()
	s.wait("condition=Ready", "node/"+pod.node.Name)
	if err := harness.Poll(t.Context(), limit, func(context.Context) error {
		pids, err := pod.node.VMMs()
		if err == nil && len(pids) > 0 {
			err = fmt.Errorf("node %s has the VMMs %v", pod.node.Name, pids)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	s.kubectl("taint", "node", pod.node.Name, taint+"-")
	s.heard(watch, watch.Latest().Counter)
	time.Sleep(quietFor)
	if d, b := watch.Twice(); d != doubles || b != wentBack {
		t.Errorf("since its node is back the VM was heard twice %d times, and went back %d times", d-doubles, b-wentBack)
	}
	if got := s.kubectl("get", "gvm", "survivor", "-o", "jsonpath={.status.generation} {.status.phase}"); got !=
		"2 Running" {
		t.Errorf("generation and phase are %q", got)
	}
}

// heard waits until the VM has counted beyond what it had.
func (s site) heard(watch *observer.Watcher, beyond uint64) {
	s.t.Helper()
	if err := harness.Poll(s.t.Context(), limit, func(context.Context) error {
		if now := watch.Latest().Counter; now <= beyond {
			return fmt.Errorf("the VM is heard at %d, and was at %d", now, beyond)
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
}
