//go:build integration

package k8s

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/observer"
)

// victim is a program that is killed on all nodes at once. It is started again.
type victim struct {
	name string
	kill func(context.Context) error
}

func (s site) victims() []victim {
	each := func(restart func(context.Context, *harness.Node) error) func(context.Context) error {
		return func(ctx context.Context) error {
			for _, n := range s.Nodes() {
				if err := restart(ctx, n); err != nil {
					return err
				}
			}
			return nil
		}
	}
	pods := func(program string) victim {
		return victim{program, func(context.Context) error { return Kill(program, s.Nodes()...) }}
	}
	return []victim{
		pods(operatorProgram), pods(agentProgram), pods("godwitd"),
		{"kubelet", each(func(ctx context.Context, n *harness.Node) error {
			return again(ctx, s.Kubelet(n), func(ctx context.Context) error { return s.StartKubelet(ctx, n) })
		})},
		{"containerd", each(func(ctx context.Context, n *harness.Node) error {
			return again(ctx, n.Containerd, n.StartContainerd)
		})},
	}
}

// leg is one thing that a VM does in this test.
type leg struct {
	name, kind, wish string // the kind is that of its operation
	// done is what the VM's object says at the end, in this order.
	done []string
}

// phases of an operation, in their order. A kind of operation may not go through all.
var phases = []string{"Preparing", "Transferring", "Switching", "Committed", "Cleaning"}

// recordState is a line for each state of a record.
const recordState = `jsonpath={.summary.generation} {.summary.kind} {.summary.phase}{"\n"}`

// reached waits until the record has an operation of a kind that is in a phase or in a later one, or is over. It
// answers what it saw.
func (s site) reached(w *Watch, from int, kind, phase string) string {
	s.t.Helper()
	later := phases[slices.Index(phases, phase):]
	for begun := time.Now(); time.Since(begun) < limit; time.Sleep(5 * time.Millisecond) {
		states, err := w.States()
		if err != nil {
			s.t.Fatal(err)
		}
		open := false
		for _, state := range states[from:] {
			fields := strings.Fields(state)
			of := len(fields) == 3 && fields[1] == kind
			if over := open && !of; over || of && slices.Contains(later, fields[2]) {
				return state
			}
			open = of
		}
	}
	s.t.Fatalf("the record did not come to %s", phase)
	return ""
}

// steady waits until all programs of the cluster serve.
func (s site) steady() {
	s.t.Helper()
	for _, what := range []string{"deployment/godwit-operator", "daemonset/godwit-node"} {
		s.kubectl("rollout", "status", "-n", system, "--timeout="+limit.String(), what)
	}
	for _, n := range s.Nodes() {
		s.wait("condition=Ready", "node/"+n.Name)
	}
}

// goes has the VM do a leg, during which a program is killed. The wire hears one VM all the time.
func (s site) goes(l leg, phase string, v victim, records *Watch, beacons *observer.Watcher) {
	s.t.Helper()
	s.steady()
	states, err := records.States()
	if err != nil {
		s.t.Fatal(err)
	}
	before, begun := beacons.Latest(), time.Now()
	s.kubectl("patch", "gvm", "survivor", "--type=merge", "-p", l.wish)
	seen := s.reached(records, len(states), l.kind, phase)
	if err := v.kill(s.t.Context()); err != nil {
		s.t.Fatalf("kill %s: %v", v.name, err)
	}
	for _, done := range l.done {
		s.kubectl("wait", "gvm/survivor", "--for="+done, "--timeout="+limit.String())
	}
	s.t.Logf("killed at %q, over after %.1f s", seen, time.Since(begun).Seconds())
	want := 1
	if l.name == "hibernate" {
		want = 0
	} else {
		s.heard(beacons, before.Counter)
	}
	if err := harness.Poll(s.t.Context(), limit, func(context.Context) error { return s.have(want) }); err != nil {
		s.t.Error(err)
	}
	now := beacons.Latest()
	doubles, back := beacons.Twice()
	if now.Nonce != before.Nonce || doubles > 0 || back > 0 {
		s.t.Fatalf("VM %q is now %q; heard twice %d times, went back %d times", before.Nonce, now.Nonce, doubles, back)
	}
}

// TestMachineKilled: a VM hibernates, wakes on the other node, and moves back live. Each time one program is killed
// at one phase of the operation. With GODWIT_CRASH=full each program is, at each phase. The VM is where it is wanted
// all the same, and it was never two.
func TestMachineKilled(t *testing.T) {
	s := openMachines(t)
	conn, err := s.ListenPacket(beaconAt)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	beacons := observer.Watch(conn)
	s.apply("survivor")
	s.wait("condition=Ready", "gvm/survivor")
	s.heard(beacons, 0)
	records, err := s.Watch(t.Context(), "survivor", recordState, "vmrecord", "default.survivor")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := records.End(); err != nil {
			t.Error(err)
		}
	})
	home := s.pod("survivor-g1-a0").node.Name
	away := s.Nodes()[0].Name
	if away == home {
		away = s.Nodes()[1].Name
	}
	on := func(node string) []string {
		return []string{"jsonpath={.status.owner.node}=" + node, "jsonpath={.status.phase}=Running", "condition=Ready"}
	}
	const running = `{"spec": {"operatingMode": "Running", "nodeName": %q}}`
	legs := []leg{
		{"hibernate", "Hibernate", `{"spec": {"operatingMode": "Hibernated"}}`, []string{"condition=Hibernated"}},
		{"wake", "Wake", fmt.Sprintf(running, away), on(away)},
		{"move", "Migrate", fmt.Sprintf(running, home), on(home)},
	}
	victims, full := s.victims(), os.Getenv("GODWIT_CRASH") == "full"
	for i, phase := range phases[:4] {
		for turn := range victims {
			if turn > 0 && !full {
				break
			}
			for j, l := range legs {
				v := victims[(i*len(legs)+turn+j)%len(victims)]
				if !t.Run(fmt.Sprintf("%s/%s/%s", l.name, phase, v.name), func(t *testing.T) {
					site{s.Cluster, t}.goes(l, phase, v, records, beacons)
				}) {
					return // the next leg begins where this one was to end
				}
			}
		}
	}
}
