//go:build integration

package k8s

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// operators are as many as the installation has.
const operators = 2

// awakes waits until a VM runs under its owner number, and asks its redis for what it had in memory.
func (s site) awakes(what, nonce string, generation, count int) (node string) {
	s.t.Helper()
	begun := time.Now()
	s.kubectl("wait", "gvm/shop", "--for=jsonpath={.status.generation}="+strconv.Itoa(generation),
		"--timeout="+limit.String())
	s.wait("condition=Ready", "gvm/shop")
	s.t.Logf("%s: Ready after %.1f s", what, time.Since(begun).Seconds())
	for command, want := range map[string]string{"GET nonce": nonce, "INCR count": strconv.Itoa(count)} {
		if got, err := s.AskRedis(s.t.Context(), "shop", command); err != nil || got != want {
			s.t.Errorf("%s: %s answers %q, want %q: %v", what, command, got, want, err)
		}
	}
	return s.kubectl("get", "gvm", "shop", "-o", "jsonpath={.status.owner.node}")
}

// remembers gives the redis of the VM something to keep in memory.
func (s site) remembers() (nonce string) {
	s.t.Helper()
	nonce = rand.Text()
	for command, want := range map[string]string{"SET nonce " + nonce: "OK", "INCR count": "1"} {
		if got, err := s.AskRedis(s.t.Context(), "shop", command); err != nil || got != want {
			s.t.Fatalf("%s answers %q: %v", command, got, err)
		}
	}
	return nonce
}

// TestMachineOnStop: the pod of a VM is deleted while no operator is there. The VM runs on, and hibernates when there
// is one again. It wakes in a pod that the operator makes, with what it had in memory. With an operator it
// does so at once.
func TestMachineOnStop(t *testing.T) {
	s := openMachines(t)
	s.apply("shop")
	s.wait("condition=Ready", "gvm/shop")
	nonce := s.remembers()
	if err := s.Operators(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Operators(context.WithoutCancel(t.Context()), operators); err != nil {
			t.Error(err)
		}
	})
	s.kubectl("delete", "pod", "shop-g1-a0", "--wait=false")
	for begun := time.Now(); time.Since(begun) < 8*time.Second; time.Sleep(time.Second) { // longer than the shim waits
		if got, err := s.AskRedis(t.Context(), "shop", "GET nonce"); err != nil || got != nonce {
			t.Fatalf("its pod is deleted, and no operator is there: the nonce is %q: %v", got, err)
		}
	}
	if err := s.Operators(t.Context(), operators); err != nil {
		t.Fatal(err)
	}
	s.awakes("after a delete without an operator", nonce, 3, 2)
	pod := s.kubectl("get", "gvm", "shop", "-o", "jsonpath={.status.pod.name}")
	if pod == "shop-g1-a0" {
		t.Errorf("the VM is Ready in pod %s, which was deleted", pod)
	}
	s.kubectl("delete", "pod", pod, "--timeout="+limit.String())
	s.awakes("after a delete", nonce, 5, 3)
	s.kubectl("patch", "gvm", "shop", "--type=merge", "-p", `{"spec": {"operatingMode": "Stopped"}}`)
	s.wait("jsonpath={.status.phase}=Stopped", "gvm/shop")
	if hibernated := s.kubectl("get", "gvm", "shop", "-o",
		`jsonpath={.status.conditions[?(@.type=="Hibernated")].status}`); hibernated != "False" {
		t.Errorf("a VM that was stopped by order has the condition Hibernated %q", hibernated)
	}
}

// TestMachineAborted: the registry is away when the pod of a VM is deleted. Its signal goes on before the pod's time is
// over, and an event says what has become of the VM.
func TestMachineAborted(t *testing.T) {
	s := openMachines(t)
	s.apply("shop")
	s.wait("condition=Ready", "gvm/shop")
	if err := s.Registry.Kill(); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	s.kubectl("delete", "pod", "shop-g1-a0", "--grace-period=25", "--timeout="+limit.String())
	t.Logf("its pod was gone after %.1f s", time.Since(begun).Seconds())
	s.eventually("the event", has("shop-g1-a0"), "get", "events", "--field-selector",
		"involvedObject.name=shop,reason=HibernateAborted", "-o", "jsonpath={.items[*].message}")
	if err := s.ServeRegistry(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.wait("condition=Ready", "gvm/shop") // it boots again, by the rule of its template
}

// TestMachineEvicted: a VM of the strategy Cold leaves a node that is drained by its own end there, and wakes on the
// other one. One of the strategy Hibernate sleeps until somebody wants it.
func TestMachineEvicted(t *testing.T) {
	s := openMachines(t)
	s.apply("shop")
	s.wait("condition=Ready", "gvm/shop")
	nonce := s.remembers()
	s.kubectl("patch", "gvm", "shop", "--type=merge", "-p", `{"spec": {"eviction": {"strategy": "Cold"}}}`)
	node := s.pod("shop-g1-a0").node
	s.afterwards("uncordon", node.Name)
	if out, err := s.Drain(t.Context(), node); err != nil {
		t.Fatalf("drain: %v: %s", err, out)
	}
	now := s.awakes("drained, Cold", nonce, 3, 2)
	if now == node.Name {
		t.Errorf("after the drain of node %s the VM is there", now)
	}
	s.kubectl("uncordon", node.Name)
	s.kubectl("patch", "gvm", "shop", "--type=merge", "-p", `{"spec": {"eviction": {"strategy": "Hibernate"}}}`)
	for _, n := range s.Nodes() {
		if n.Name != now {
			continue
		}
		s.afterwards("uncordon", n.Name)
		if out, err := s.Drain(t.Context(), n); err != nil {
			t.Fatalf("drain: %v: %s", err, out)
		}
	}
	s.wait("condition=Hibernated", "gvm/shop")
	if mode := s.kubectl("get", "gvm", "shop", "-o", "jsonpath={.spec.operatingMode}"); mode != "Hibernated" {
		t.Errorf("evicted, with the strategy Hibernate: the VM is to be %q", mode)
	}
	s.kubectl("patch", "gvm", "shop", "--type=merge", "-p", `{"spec": {"operatingMode": "Running"}}`)
	s.awakes("woken", nonce, 5, 3)
}

// TestMachineStranger: a pod of the same namespace that names a VM which sleeps is refused on each node. Nothing is
// changed by it.
func TestMachineStranger(t *testing.T) {
	s := openMachines(t)
	s.apply("shop")
	s.wait("condition=Ready", "gvm/shop")
	nonce := s.remembers()
	s.kubectl("patch", "gvm", "shop", "--type=merge", "-p", `{"spec": {"operatingMode": "Hibernated"}}`)
	s.wait("condition=Hibernated", "gvm/shop")
	record := []string{"get", "vmrecord", "default.shop", "-o", "jsonpath={.record}"}
	before := s.kubectl(record...)
	for _, n := range s.Nodes() {
		name := "thief-" + n.Name
		if err := s.Apply(t.Context(), fmt.Sprintf(impostor, name, "default", "shop", n.Name)); err != nil {
			t.Fatal(err)
		}
		s.afterwards("delete", "--ignore-not-found", "--timeout="+limit.String(), "pod", name)
		out := s.eventually("the refusal", has("default.shop"), "get", "events", "--field-selector",
			"involvedObject.name="+name+",reason=FailedCreatePodSandBox", "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(out, "none of its pods") {
			t.Errorf("node %s refuses a stranger: %s", n.Name, out)
		}
		s.kubectl("delete", "--timeout="+limit.String(), "pod", name)
	}
	if after := s.kubectl(record...); after != before {
		t.Error("strangers have changed the record of a VM that sleeps")
	}
	s.kubectl("patch", "gvm", "shop", "--type=merge", "-p", `{"spec": {"operatingMode": "Running"}}`)
	s.awakes("woken", nonce, 3, 2)
}
