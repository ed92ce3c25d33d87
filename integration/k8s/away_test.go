//go:build integration

package k8s

import (
	"flag"
	"slices"
	"strings"
	"testing"
	"time"
)

// apiAway is longer than the leases of operators and nodes last: nothing waits longer for its answer than that.
var apiAway = flag.Duration("api-away", 100*time.Second, "how long the API server is away in TestAPIAway")

// TestAPIAway: no API server answers for longer than each lease in the cluster lasts. The VM answers on its TCP
// connection all the time, and nothing is given up: afterwards it is in the same pod and the same VMM. Then it moves
// live, as ever.
func TestAPIAway(t *testing.T) {
	k := openKeeper(t)
	home := k.pod("keeper-g1-a0").node
	before, err := home.VMMs()
	if err != nil || len(before) != 1 {
		t.Fatalf("node %s has the VMMs %v: %v", home.Name, before, err)
	}
	if err := k.api.Kill(); err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); time.Since(begun) < *apiAway; time.Sleep(5 * time.Second) {
		now := k.line.Said()
		if now.Err != nil {
			t.Fatalf("the connection ended %.0f s after the API server: %v", time.Since(begun).Seconds(), now.Err)
		}
		if after, err := home.VMMs(); err != nil || !slices.Equal(before, after) {
			t.Fatalf("the VMMs of node %s were %v, and are %v: %v", home.Name, before, after, err)
		}
	}
	if err := k.startServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.kubectl("rollout", "status", "-n", system, "--timeout="+limit.String(), "deployment/godwit-operator")
	for _, n := range k.Nodes() {
		k.wait("condition=Ready", "node/"+n.Name)
	}
	k.wait("condition=Ready", "gvm/keeper")
	k.talks("after the API server is back")
	if got := k.get("{.status.generation} {.status.pod.name}"); got != "1 keeper-g1-a0" {
		t.Errorf("after the API server is back, generation and pod are %q", got)
	}
	if pods := k.kubectl("get", "pods", "-l", "godwit.dev/vm=keeper", "-o", "name"); strings.Count(pods, "pod/") != 1 {
		t.Errorf("its pods are %q", pods)
	}
	away := k.other(home.Name)
	k.kubectl("patch", "gvm", "keeper", "--type=merge", "-p", `{"spec": {"nodeName": "`+away+`"}}`)
	k.kubectl("wait", "gvm/keeper", "--for=jsonpath={.status.owner.node}="+away, "--timeout="+limit.String())
	k.talks("after a move that follows")
}
