//go:build integration

package k8s

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// machines is the cluster of all cases with VirtualMachines: two nodes, and godwit as kubectl installs it.
var machines = sync.OnceValues(func() (*Cluster, error) {
	c, err := Open(context.Background(), Options{Nodes: 2, Handler: Godwit, Installed: true})
	opened = append(opened, c)
	return c, err
})

func openMachines(t *testing.T) site {
	t.Helper()
	c, err := machines()
	if err != nil {
		t.Fatalf("start the cluster: %v", err)
	}
	s := site{Cluster: c, t: t}
	t.Cleanup(func() {
		if t.Failed() {
			s.Keep(t.Name())
		}
	})
	return s
}

// TestMachine: a VirtualMachine becomes a pod, and is Ready. Its columns say where it runs. No other pod takes its
// record: not one of another namespace, and not one of its own on another node. The operator has the rights of its
// account alone.
func TestMachine(t *testing.T) {
	s := openMachines(t)
	s.apply("shop")
	s.wait("condition=Ready", "virtualmachine/shop")
	columns := strings.Fields(s.kubectl("get", "gvm", "shop", "--no-headers"))
	node := s.pod("shop-g1-a0").node
	if len(columns) < 5 || strings.Join(columns[:5], " ") != "shop Running Running True "+node.Name {
		t.Errorf("the columns of the VM are %q", columns)
	}
	record := []string{"get", "vmrecord", "default.shop", "-o",
		"jsonpath={.summary.owner} {.summary.generation} {.summary.uid}"}
	want := fmt.Sprintf("%s 1 %s", node.Name, s.kubectl("get", "gvm", "shop", "-o", "jsonpath={.metadata.uid}"))
	if got := s.kubectl(record...); got != want {
		t.Errorf("the record has owner, generation and uid %q, want %q", got, want)
	}
	// redis-cli answers from the VM: the guest is the one of the template.
	if out := s.exec("shop-g1-a0", "redis", "redis-cli", "ping"); out != "PONG" {
		t.Errorf("redis says %q", out)
	}
	s.impostors(node)
	if got := s.kubectl(record...); got != want {
		t.Errorf("after pods of others, the record has owner, generation and uid %q, want %q", got, want)
	}
	s.wait("condition=Ready", "virtualmachine/shop")
	if log, err := s.OperatorLog(); err != nil || strings.Contains(log, "forbidden") {
		t.Errorf("the operator lacks rights: %v: %s", err, log)
	}
}

// impostors are pods that call themselves the VM that runs on a node, in each way that a pod can.
func (s site) impostors(node *harness.Node) {
	s.t.Helper()
	other := s.Nodes()[0]
	if other == node {
		other = s.Nodes()[1]
	}
	s.kubectl("create", "namespace", "team")
	s.t.Cleanup(func() {
		if _, err := s.Kubectl(context.WithoutCancel(s.t.Context()), "delete", "namespace", "team"); err != nil {
			s.t.Error(err)
		}
	})
	s.eventually("the account of their pods", has("default"), "get", "-n", "team", "serviceaccount", "-o", "name")
	place := func(name, namespace, node, annotation string) {
		s.t.Helper()
		manifest := fmt.Sprintf(impostor, name, namespace, annotation, node)
		if err := s.Apply(s.t.Context(), manifest); err != nil {
			s.t.Fatal(err)
		}
	}
	// In another namespace they are VMs of their own, on the same node too.
	place("same", "team", node.Name, "shop")
	place("whole", "team", node.Name, "default.shop")
	for _, name := range []string{"same", "whole"} {
		s.kubectl("wait", "-n", "team", "--for=condition=Ready", "--timeout="+limit.String(), "pod/"+name)
	}
	for _, name := range []string{"team.shop", "team.default.shop"} {
		if owner := s.kubectl("get", "vmrecord", name, "-o", "jsonpath={.summary.owner}"); owner != node.Name {
			s.t.Errorf("the record %s is of %q", name, owner)
		}
	}
	// In the same namespace the other node refuses it.
	place("thief", "default", other.Name, "shop")
	s.eventually("the refusal", has("default.shop"), "get", "events", "--field-selector",
		"involvedObject.name=thief,reason=FailedCreatePodSandBox", "-o", "jsonpath={.items[*].message}")
	for _, args := range [][]string{{"-n", "team", "pod", "same", "whole"}, {"pod", "thief"}} {
		s.kubectl(append([]string{"delete", "--timeout=" + limit.String()}, args...)...)
	}
}

// impostor is a pod that has all that identifies a VM's pod. What CRI itself tells the shim is forged too.
const impostor = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "namespace": %q,
	"labels": {"godwit.dev/vm": "shop", "godwit.dev/generation": "1"},
	"annotations": {"godwit.dev/vm": %q, "io.kubernetes.cri.sandbox-namespace": "default"}},
	"spec": {"runtimeClassName": "godwit", "nodeName": %q, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
	"containers": [{"name": "main", "image": "localhost/godwit/busybox:1", "command": ["sleep", "10000"]}]}}`

// travels has the VM do something, and afterwards it is the same one, on that node and on no other.
func (s site) travels(what, node, nonce string, count int, wish string) {
	s.t.Helper()
	begun := time.Now()
	s.kubectl("patch", "gvm", "shop", "--type=merge", "-p", wish)
	s.kubectl("wait", "gvm/shop", "--for=jsonpath={.status.owner.node}="+node, "--timeout="+limit.String())
	s.kubectl("wait", "gvm/shop", "--for=jsonpath={.status.phase}=Running", "--timeout="+limit.String())
	s.wait("condition=Ready", "gvm/shop")
	s.t.Logf("%s: Ready on node %s after %.1f s", what, node, time.Since(begun).Seconds())
	for command, want := range map[string]string{"GET nonce": nonce, "INCR count": strconv.Itoa(count)} {
		if got, err := s.AskRedis(s.t.Context(), "shop", command); err != nil || got != want {
			s.t.Errorf("%s: %s answers %q, want %q: %v", what, command, got, want, err)
		}
	}
	for _, n := range s.Nodes() {
		want := 0
		if n.Name == node {
			want = 1
		}
		if err := harness.Poll(s.t.Context(), time.Minute, func(context.Context) error {
			pids, err := n.VMMs()
			if err == nil && len(pids) != want {
				err = fmt.Errorf("node %s has the VMMs %v", n.Name, pids)
			}
			return err
		}); err != nil {
			s.t.Errorf("%s: %v", what, err)
		}
	}
}

// TestMachineTravels: by patches of its object, a VM sleeps, wakes on the other node, and moves back while it runs.
// What its redis has in memory is asked from outside.
func TestMachineTravels(t *testing.T) {
	s := openMachines(t)
	s.apply("shop")
	s.wait("condition=Ready", "gvm/shop")
	home := s.kubectl("get", "gvm", "shop", "-o", "jsonpath={.status.owner.node}")
	away := s.Nodes()[0].Name
	if away == home {
		away = s.Nodes()[1].Name
	}
	nonce := rand.Text()
	if got, err := s.AskRedis(t.Context(), "shop", "SET", "nonce", nonce); err != nil || got != "OK" {
		t.Fatalf("redis says %q: %v", got, err)
	}
	s.travels("nothing", home, nonce, 1, `{}`)
	s.kubectl("patch", "gvm", "shop", "--type=merge", "-p", `{"spec": {"operatingMode": "Hibernated"}}`)
	s.wait("condition=Hibernated", "gvm/shop")
	if err := harness.Poll(t.Context(), limit, s.empty); err != nil {
		t.Error(err)
	}
	s.eventually("the end of its pod", func(out string) bool { return out == "" }, "get", "pods", "-o", "name")
	s.travels("wake", away, nonce, 2, fmt.Sprintf(`{"spec": {"operatingMode": "Running", "nodeName": %q}}`, away))
	s.travels("live move", home, nonce, 3, fmt.Sprintf(`{"spec": {"nodeName": %q}}`, home))
}
