//go:build integration

package k8s

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// TestSleep: a pod that kubelets run is sent to sleep on one node, deleted, and made again with the other node's name.
// There it goes on: its init container ends as it had, and its kubelet starts all containers and keeps them.
func TestSleep(t *testing.T) {
	if *nodes < 2 || *handler != Godwit {
		t.Skip("two nodes with godwit are needed")
	}
	s := open(t)
	text, err := os.ReadFile("testdata/sleeper.yml")
	if err != nil {
		t.Fatal(err)
	}
	remove := func(ctx context.Context) error {
		_, err := s.Kubectl(ctx, "delete", "--ignore-not-found", "--timeout="+limit.String(), "pod/sleeper")
		return err
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if t.Failed() {
			out, err := s.Kubectl(ctx, "describe", "pods")
			t.Log(out, err)
			s.Keep(t.Name())
		}
		if err := remove(ctx); err != nil {
			t.Error(err)
		}
		if err := harness.Poll(ctx, limit, s.empty); err != nil {
			t.Error(err)
		}
	})
	run := func(node string) {
		if err := s.Apply(t.Context(), strings.Replace(string(text), "NODE", node, 1)); err != nil {
			t.Fatal(err)
		}
		s.ready("sleeper")
	}
	counted := func() (nonce string, count int) {
		// A pod is Ready when its tasks are armed, and an exec is refused until its VM runs.
		out := s.eventually("the count", func(out string) bool { return len(strings.Fields(out)) == 2 }, "exec", "sleeper",
			"-c", "reader", "--", "cat", "/shared/nonce", "/shared/count")
		found := strings.Fields(out)
		if count, err = strconv.Atoi(found[1]); err != nil {
			t.Fatal(err)
		}
		return found[0], count
	}
	run(s.Node(0).Name)
	nonce, was := counted()
	s.Node(0).Godwit(t, "-n", "k8s.io", "hibernate", "--end-execs", "default.sleeper")
	s.wait("jsonpath={.status.phase}=Succeeded", "pod/sleeper")
	if err := remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := harness.Poll(t.Context(), limit, s.empty); err != nil {
		t.Fatal(err)
	}
	run(s.Node(1).Name)
	now, is := counted()
	if now != nonce || is < was {
		t.Errorf("run %s had counted to %d; after the wake run %s has counted to %d", nonce, was, now, is)
	}
	for name, c := range s.statuses("sleeper") {
		if c.RestartCount != 0 || name == "setup" && (c.State.Terminated == nil || c.State.Terminated.ExitCode != 0) {
			t.Errorf("container %s after the wake: %+v", name, c)
		}
	}
}
