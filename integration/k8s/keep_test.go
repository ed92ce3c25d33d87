//go:build integration

package k8s

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/observer"
)

// keeper is a VM that keeps its address, and one TCP connection from the wire that asks it all the time.
type keeper struct {
	site
	address string
	line    *observer.Line
}

func openKeeper(t *testing.T) keeper {
	t.Helper()
	s := openMachines(t)
	s.apply("keeper")
	s.wait("condition=Ready", "gvm/keeper")
	k := keeper{site: s}
	k.address = k.get("{.status.addresses[0]}")
	var err error
	if k.line, err = observer.CallEvery(t.Context(), s.Dial, k.address, time.Minute, 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.line.HangUp() })
	return k
}

func (k keeper) get(path string) string {
	k.t.Helper()
	return k.kubectl("get", "gvm", "keeper", "-o", "jsonpath="+path)
}

// talks wants the connection to be as it was, and the VM to have another answer on it.
func (k keeper) talks(after string) {
	k.t.Helper()
	begun := k.line.Said()
	for end := time.Now().Add(limit); ; time.Sleep(pause) {
		said := k.line.Said()
		switch {
		case said.Err != nil:
			k.t.Fatalf("%s, the connection ended after %d answers: %v", after, said.Asked, said.Err)
		case said.Asked > begun.Asked+2:
			if now := k.get("{.status.addresses[0]}"); now != k.address {
				k.t.Errorf("%s, the address is %s, and was %s", after, now, k.address)
			}
			return
		case time.Now().After(end):
			k.t.Fatalf("%s, the VM has not answered on the connection", after)
		}
	}
}

func (k keeper) other(node string) string {
	for _, n := range k.Nodes() {
		if n.Name != node {
			return n.Name
		}
	}
	return ""
}

// TestMachineDrainKeepsConnections: kubectl drain moves a VM that keeps its address live. Its TCP connection stays
// open, and a budget that allows no disruption holds in each of its states. Asleep it keeps the address too.
func TestMachineDrainKeepsConnections(t *testing.T) {
	k := openKeeper(t)
	budget, err := k.OneAlways(t.Context(), "keeper")
	if err != nil {
		t.Fatal(err)
	}
	k.afterwards("delete", "poddisruptionbudget", "keeper")
	node := k.pod("keeper-g1-a0").node
	k.afterwards("uncordon", node.Name)
	if out, err := k.Drain(t.Context(), node); err != nil {
		t.Fatalf("drain: %v: %s", err, out)
	}
	k.wait("condition=Ready", "gvm/keeper")
	if now := k.get("{.status.owner.node}"); now != k.other(node.Name) {
		t.Errorf("after the drain of %s the VM is on %q", node.Name, now)
	}
	k.talks("after the drain")
	if err := budget.Held(); err != nil {
		t.Error(err)
	}
	before, err := observer.Ask(t.Context(), k.Dial, k.address)
	if err != nil {
		t.Fatal(err)
	}
	k.kubectl("uncordon", node.Name)
	k.kubectl("patch", "gvm", "keeper", "--type=merge", "-p", `{"spec": {"operatingMode": "Hibernated"}}`)
	k.wait("condition=Hibernated", "gvm/keeper")
	k.kubectl("patch", "gvm", "keeper", "--type=merge", "-p",
		fmt.Sprintf(`{"spec": {"operatingMode": "Running", "nodeName": %q}}`, node.Name))
	k.wait("jsonpath={.status.phase}=Running", "gvm/keeper")
	after, err := observer.Ask(t.Context(), k.Dial, k.address)
	if err != nil || after.Nonce != before.Nonce || after.Counter <= before.Counter {
		t.Errorf("at the same address after the wake is %+v, was %+v: %v", after, before, err)
	}
}

// TestMachineStaysWithItsAddress: where the network does not give a VM the address that it keeps, its move is refused
// while the VM runs. Order and event say why, and its connection stays open.
func TestMachineStaysWithItsAddress(t *testing.T) {
	k := openKeeper(t)
	if err := k.Deaf(true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Deaf(false); err != nil {
			t.Error(err)
		}
	})
	home := k.get("{.status.owner.node}")
	k.kubectl("patch", "gvm", "keeper", "--type=merge", "-p",
		fmt.Sprintf(`{"spec": {"nodeName": %q}}`, k.other(home)))
	told := func(out string) bool {
		return strings.Contains(out, k.address) && strings.Contains(out, "godwit.dev/network")
	}
	k.eventually("the refusal", told, "get", "vmop", "-o",
		`jsonpath={range .items[?(@.status.phase=="Failed")]}{.status.reason}{"\n"}{end}`)
	k.eventually("the event", told, "get", "events", "--field-selector",
		"involvedObject.name=keeper,reason=MigrateFailed", "-o", "jsonpath={.items[*].message}")
	k.kubectl("patch", "gvm", "keeper", "--type=merge", "-p", fmt.Sprintf(`{"spec": {"nodeName": %q}}`, home))
	k.eventually("the end of the pod that waited", func(out string) bool { return strings.Fields(out)[0] == out },
		"get", "pods", "-l", "godwit.dev/vm=keeper", "-o", "jsonpath={.items[*].metadata.name}")
	k.wait("condition=Ready", "gvm/keeper")
	if now := k.get("{.status.owner.node} {.status.generation}"); now != home+" 1" {
		t.Errorf("node and generation are %q", now)
	}
	k.talks("after the refusal")
}
