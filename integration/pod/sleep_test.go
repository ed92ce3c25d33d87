//go:build integration

package pod

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/critest"
	"godwit.dev/godwit/integration/harness"
)

// counting is a workload that counts in memory, under a number that it makes at its start. Each count goes to its
// output, and to the memory that the containers of the pod share.
const counting = `nonce=$(cat /proc/sys/kernel/random/uuid); n=0; while :; do n=$((n+1)); echo "count $n"
echo "$nonce $n" > /dev/shm/next; mv /dev/shm/next /dev/shm/count; sleep 0.2; done`

// pair are two nodes of one cluster.
func pair(t *testing.T) (a, b *node) {
	both, err := critest.OpenPair(t.Context(), harness.Options{Release: harness.Newest, Log: t.Logf}, image)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := both[0].Close(); err != nil {
			t.Error(err)
		}
	})
	nodes := [2]*node{}
	for i, g := range both {
		nodes[i] = &node{Ground: g, t: t, dir: t.TempDir()}
		nodes[i].crictl("pull", image)
	}
	return nodes[0], nodes[1]
}

// sleeper is a pod of three containers whose VM has a name: one that ends, one that counts, one that reads what the
// other one counts.
type sleeper struct {
	n                                 *node
	config, pod, setup, count, reader string
	logs                              string // of the one that counts
	begun                             int    // how much of it is of an earlier run here
}

func (n *node) sleeperConfig(uid string) string {
	return n.file("sleeper-"+uid, object{
		"metadata": object{"name": "sleeper", "namespace": "team", "uid": uid, "attempt": 0}, "hostname": "sleeper",
		"log_directory": n.dir, "linux": n.security(), "annotations": object{"godwit.dev/vm": "sleeper"},
	})
}

// sleeper makes the pod on a node. There the VM boots, or wakes.
func (n *node) sleeper(uid string) *sleeper {
	n.t.Helper()
	s := &sleeper{n: n, logs: filepath.Join(n.dir, "count.log")}
	if earlier, err := os.ReadFile(s.logs); err == nil {
		s.begun = len(earlier)
	}
	s.config = n.sleeperConfig(uid)
	s.pod = n.crictl("runp", "--runtime", "godwit", s.config)
	run := n.runner(s.pod, s.config)
	own := object{"linux": n.security()}
	s.setup = run("setup", "exit 0", own)
	n.eventually("the end of setup", has(`"exitCode": 0`), "inspect", s.setup)
	s.count = run("count", counting, own)
	if n.users != 0 {
		own["mounts"] = n.volumes(uid)
	}
	s.reader = run("reader", "echo kept > /kept; test -d /scratch && cp /kept /scratch/kept; sleep 100000", own)
	return s
}

var counted = regexp.MustCompile(`^([0-9a-f-]{36}) ([0-9]+)$`)

// state is what the pod's containers share: the number of the run, and how far it has counted.
func (s *sleeper) state() (nonce string, count int) {
	s.n.t.Helper()
	var found []string
	s.n.eventually("what the containers share", func(out string) bool {
		found = counted.FindStringSubmatch(strings.TrimSpace(out))
		return found != nil
	}, "exec", s.reader, "cat", "/dev/shm/count")
	count, err := strconv.Atoi(found[2])
	if err != nil {
		s.n.t.Fatal(err)
	}
	return found[1], count
}

// counts are the numbers in the log of the container that counts, in order.
func (s *sleeper) counts() (all []int) {
	s.n.t.Helper()
	data, err := os.ReadFile(s.logs)
	if err != nil {
		s.n.t.Fatal(err)
	}
	for line := range strings.Lines(string(data[s.begun:])) {
		var n int
		if _, text, ok := strings.Cut(strings.TrimSpace(line), "count "); ok {
			if _, err := fmt.Sscan(text, &n); err != nil {
				s.n.t.Fatalf("log line %q: %v", line, err)
			}
			all = append(all, n)
		}
	}
	return all
}

// goesOn wants the pod to be the one that another node had, with that number of its run, and as far as it had counted.
// It answers how far the pod has counted by now.
func (s *sleeper) goesOn(before *sleeper, nonce string, was int) (is int) {
	t := s.n.t
	t.Helper()
	now, is := s.state()
	if now != nonce || is < was {
		t.Errorf("run %s had counted to %d; on node %s run %s has counted to %d", nonce, was, s.n.Name, now, is)
	}
	if out := s.n.crictl("exec", s.reader, "cat", "/kept"); out != "kept" {
		t.Errorf("a file of a container has %q on node %s", out, s.n.Name)
	}
	s.n.eventually("logs", has("count"), "logs", s.count)
	first, second := before.counts(), s.counts()
	if len(first) == 0 || len(second) == 0 || second[0] != first[len(first)-1]+1 {
		t.Errorf("the log ends with %v on the one node, and begins with %v on the other", first[max(0, len(first)-3):],
			second[:min(len(second), 3)])
	}
	return is
}

// order gives godwit an order, and returns once that waits for the pod. The channel has its outcome.
func (n *node) order(waits func(context.Context) error, args ...string) <-chan error {
	n.t.Helper()
	over := make(chan error, 1)
	go func() {
		out, err := n.RunGodwit(n.t.Context(), append([]string{"-n", "k8s.io"}, args...)...)
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		over <- err
	}()
	err := harness.Poll(n.t.Context(), time.Minute, waits)
	if err != nil {
		select {
		case failed := <-over:
			err = fmt.Errorf("%w: %w", failed, err)
		default:
		}
		n.t.Fatal(err)
	}
	return over
}

// remove removes what CRI knows of a pod that has left.
func (s *sleeper) remove() {
	s.n.t.Helper()
	s.n.crictl("stopp", s.pod)
	// The sandbox's end is told to CRI by an event.
	s.n.eventually("remove the sandbox", func(string) bool { return true }, "rmp", s.pod)
}

// TestSleep: a pod of three containers sleeps on one node and wakes on another, by crictl on both. Memory, files,
// shared memory and logs go on. The pod has a user namespace, and keeps its ids.
func TestSleep(t *testing.T) {
	a, b := pair(t)
	a.users, b.users = 100000, 300000
	before := a.sleeper("uid-1")
	nonce, was := before.state()
	before.namesOneVM(t, b)
	a.Godwit(t, "-n", "k8s.io", "hibernate", "team.sleeper")
	for _, id := range []string{before.count, before.reader} {
		a.eventually("the end of a container that left", has(`"exitCode": 0`), "inspect", id)
	}
	before.remove()
	if vmms, err := a.VMMs(); err != nil || len(vmms) != 0 {
		t.Errorf("VMMs %v are left on the node that the pod has left: %v", vmms, err)
	}
	b.wakesNothingElse(t)
	after := b.sleeper("uid-1")
	after.goesOn(before, nonce, was)
	after.hasUsers(a)
	// The same pod on the node where it ran is what a kubelet makes anew: an order is needed.
	after.stoppedWhileItLeaves(t)
	after.remove()
	if out, err := b.try(t.Context(), "runp", "--runtime", "godwit", after.config); err == nil ||
		!strings.Contains(out+err.Error(), "godwit -n k8s.io wake team.sleeper") {
		t.Errorf("the same pod where it had slept: %v: %s", err, out)
	}
	ordered := b.order(func(ctx context.Context) error {
		out, err := b.RunGodwit(ctx, "-n", "k8s.io", "ps", "-a")
		if err == nil && !strings.Contains(out, "waking") {
			err = fmt.Errorf("the order does not wait: %s", out)
		}
		return err
	}, "wake", "team.sleeper")
	again := b.sleeper("uid-1")
	if err := <-ordered; err != nil {
		t.Errorf("a wake by order: %v", err)
	}
	if now, _ := again.state(); now != nonce {
		t.Errorf("run %s woke by order as run %s", nonce, now)
	}
	again.remove()
}
