//go:build integration

package k8s

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// afterwards runs kubectl when the case has ended.
func (s site) afterwards(args ...string) {
	s.t.Helper()
	s.t.Cleanup(func() {
		if _, err := s.Kubectl(context.WithoutCancel(s.t.Context()), args...); err != nil {
			s.t.Error(err)
		}
	})
}

// TestMachineDrain: kubectl drain moves a VM live to the other node. Its budget allows no disruption, and is not taken.
func TestMachineDrain(t *testing.T) {
	s := openMachines(t)
	s.apply("shop")
	s.wait("condition=Ready", "gvm/shop")
	s.kubectl("create", "poddisruptionbudget", "shop", "--selector=app=shop", "--min-available=1")
	s.afterwards("delete", "poddisruptionbudget", "shop")
	s.eventually("the budget", has("0 1"), "get", "poddisruptionbudget", "shop", "-o",
		"jsonpath={.status.disruptionsAllowed} {.status.currentHealthy}")
	node := s.pod("shop-g1-a0").node
	nonce := rand.Text()
	if got, err := s.AskRedis(t.Context(), "shop", "SET", "nonce", nonce); err != nil || got != "OK" {
		t.Fatalf("redis says %q: %v", got, err)
	}
	s.afterwards("uncordon", node.Name)
	out, err := s.Drain(t.Context(), node)
	if err != nil {
		t.Fatalf("drain: %v: %s", err, out)
	}
	s.wait("condition=Ready", "gvm/shop")
	if now := s.kubectl("get", "gvm", "shop", "-o", "jsonpath={.status.owner.node}"); now == node.Name || now == "" {
		t.Errorf("after the drain of %s the VM is on %q", node.Name, now)
	}
	if got, err := s.AskRedis(t.Context(), "shop", "GET", "nonce"); err != nil || got != nonce {
		t.Errorf("after the drain redis has the nonce %q, not %q: %v", got, nonce, err)
	}
	if pids, err := node.VMMs(); err != nil || len(pids) > 0 {
		t.Errorf("node %s still has the VMMs %v: %v", node.Name, pids, err)
	}
	orders := s.kubectl("get", "vmop", "-o", "jsonpath={.items[*].metadata.name} {.items[*].status.phase}")
	if fields := strings.Fields(orders); len(fields) != 2 || !strings.Contains(fields[0], "-evict-") ||
		fields[1] != "Succeeded" {
		t.Errorf("the orders are %q", orders)
	}
}

// drainGivesUp is when the drain of a node ends that cannot be drained.
const drainGivesUp = "--timeout=15s"

// TestMachineDrainEverywhere: both nodes are drained at once. The VM has no place to go, so it runs on where it is, and
// the drain of its node gives up. When the other node takes pods again, the VM moves there live.
func TestMachineDrainEverywhere(t *testing.T) {
	s := openMachines(t)
	s.apply("shop")
	s.wait("condition=Ready", "gvm/shop")
	nonce := s.remembers()
	node := s.pod("shop-g1-a0").node
	other := s.Nodes()[0]
	if other == node {
		other = s.Nodes()[1]
	}
	for _, n := range s.Nodes() {
		s.afterwards("uncordon", n.Name)
	}
	var drains sync.WaitGroup
	failed := map[*harness.Node]*error{}
	for _, n := range s.Nodes() {
		failed[n] = new(error)
		drains.Go(func() {
			_, *failed[n] = s.Kubectl(t.Context(), "drain", n.Name, "--ignore-daemonsets", "--delete-emptydir-data",
				"--pod-selector=app=shop", drainGivesUp)
		})
	}
	drains.Wait()
	if *failed[other] != nil || *failed[node] == nil {
		t.Errorf("the drain of node %s without VMs: %v; that of node %s, whose VM has no place to go: %v", other.Name,
			*failed[other], node.Name, *failed[node])
	}
	if state := s.kubectl("get", "gvm", "shop", "-o", "jsonpath={.status.owner.node} {.status.generation}"); state !=
		node.Name+" 1" {
		t.Errorf("owner and generation are %q", state)
	}
	if got, err := s.AskRedis(t.Context(), "shop", "GET nonce"); err != nil || got != nonce {
		t.Errorf("while no node takes pods, redis has the nonce %q, not %q: %v", got, nonce, err)
	}
	s.kubectl("uncordon", other.Name)
	if out, err := s.Drain(t.Context(), node); err != nil {
		t.Fatalf("drain node %s: %v: %s", node.Name, err, out)
	}
	if at := s.awakes("one node takes pods again", nonce, 2, 2); at != other.Name {
		t.Errorf("the VM is on node %q, want %s", at, other.Name)
	}
}
