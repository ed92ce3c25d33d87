//go:build integration

package pod

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// Values of CRI's pid mode.
const (
	pidOfPod    = 0
	pidOfTarget = 3
)

func pidMode(mode int, target string) object {
	return object{"linux": object{"security_context": object{"namespace_options": object{"pid": mode,
		"target_id": target}}}}
}

// TestLives: how containers of one pod end, and what that is to the others.
func TestLives(t *testing.T) {
	n := open(t, harness.Newest)
	config := n.sandbox("lives", pidMode(pidOfPod, ""))
	pod := n.crictl("runp", "--runtime", "godwit", config)
	run := n.runner(pod, config)
	calm := run("calm", "sleep 12345", nil)
	lives := func(t *testing.T) {
		t.Helper()
		if out := n.crictl("exec", calm, "echo", "lives"); out != "lives" {
			t.Errorf("another container says %q", out)
		}
	}
	t.Run("a sidecar dies", func(t *testing.T) {
		id := run("sidecar", "sleep 1; kill -9 $$", nil)
		n.eventually("its end", has(`"exitCode": 137`), "inspect", id)
		lives(t)
	})
	t.Run("processes in the background end with init", func(t *testing.T) {
		id := run("parent", "sleep 54321 & sleep 54321 & sleep 1; exit 5", pidMode(pidOfPod, ""))
		n.eventually("its end", has(`"exitCode": 5`), "inspect", id)
		watch := run("watch", "sleep 10000", pidMode(pidOfPod, ""))
		if out := n.crictl("exec", watch, "ps"); strings.Contains(out, "54321") {
			t.Errorf("processes are left: %s", out)
		}
		lives(t)
	})
	t.Run("a shared pid namespace", func(t *testing.T) {
		id := run("other", "sleep 10000", pidMode(pidOfPod, ""))
		if out := n.crictl("exec", id, "ps"); !strings.Contains(out, "sleep 10000") {
			t.Errorf("it sees %s", out)
		}
	})
	t.Run("the pid namespace of a container", func(t *testing.T) {
		debug := run("debug", "sleep 10000", pidMode(pidOfTarget, calm))
		if out := n.crictl("exec", debug, "ps"); !strings.Contains(out, "sleep 12345") {
			t.Errorf("a container in the pid namespace of another one sees %s", out)
		}
	})
	t.Run("a fork bomb", func(t *testing.T) {
		bomb := object{"linux": object{"resources": object{"unified": object{"pids.max": "64"}}}}
		id := run("bomb", "f() { f | f & }; while :; do f; sleep 1; done", bomb)
		lives(t)
		n.crictl("stop", "--timeout", "0", id)
		n.eventually("its end", has("CONTAINER_EXITED"), "inspect", id)
		n.crictl("rm", id)
		lives(t)
	})
	t.Run("a restart under exec probes", func(t *testing.T) { n.probed(t, calm, run) })
	n.crictl("rmp", "-f", pod)
}

// probed restarts a container while probes run in another one and in it. Those of the other one are all answered.
func (n *node) probed(t *testing.T, calm string, run func(name, script string, more object) string) {
	const rounds, probes = 3, 2
	var group sync.WaitGroup
	done := make(chan struct{})
	for range probes {
		group.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if out, err := n.try(t.Context(), "exec", "-s", calm, "echo", "well"); err != nil ||
					strings.TrimSpace(out) != "well" {
					t.Errorf("a probe got %q: %v", out, err)
					return
				}
			}
		})
	}
	for i := range rounds {
		id := run(fmt.Sprintf("again%d", i), "sleep 10000", nil)
		probe := make(chan struct{})
		go func() {
			defer close(probe)
			_, _ = n.try(t.Context(), "exec", "-s", id, "sleep", "5") // it ends with its container
		}()
		n.crictl("stop", "--timeout", "0", id)
		<-probe
		n.crictl("rm", id)
	}
	close(done)
	group.Wait()
}
