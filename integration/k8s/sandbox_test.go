//go:build integration

package k8s

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// thief is a pod that says that a Sandbox controls it, and that the API server names as the Sandbox's. agent-sandbox
// does not find it: it has no label.
const thief = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "thief",
  "annotations": {"godwit.dev/on-stop": "hibernate"}, "ownerReferences": [{"apiVersion": "agents.x-k8s.io/v1beta1",
  "kind": "Sandbox", "name": "agent", "uid": %q, "controller": true}]},
 "spec": {"runtimeClassName": "godwit", "terminationGracePeriodSeconds": 5,
  "containers": [{"name": "redis", "image": "localhost/godwit/redis:7"}]}}`

var sandboxes = sync.OnceValue(func() error {
	c, err := machines()
	if err != nil {
		return err
	}
	return c.InstallSandboxes(context.Background())
})

// openSandboxes is openMachines with agent-sandbox.
func openSandboxes(t *testing.T) site {
	t.Helper()
	s := openMachines(t)
	if err := sandboxes(); err != nil {
		t.Fatalf("install agent-sandbox: %v", err)
	}
	return s
}

// suspend has agent-sandbox delete the pod of a Sandbox, and waits until its VM sleeps.
func (s site) suspend(record string) {
	s.t.Helper()
	begun := time.Now()
	s.kubectl("patch", "sandbox", "agent", "--type=merge", "-p", `{"spec": {"operatingMode": "Suspended"}}`)
	s.kubectl("wait", "--for=delete", "--timeout="+limit.String(), "pod/agent")
	s.eventually("its sleep", has("sha256:"), "get", "vmrecord", record, "-o", "jsonpath={.summary.owner}")
	s.t.Logf("suspended after %.1f s", time.Since(begun).Seconds())
}

func (s site) resume() {
	s.t.Helper()
	begun := time.Now()
	s.kubectl("patch", "sandbox", "agent", "--type=merge", "-p", `{"spec": {"operatingMode": "Running"}}`)
	s.eventually("its pod", has("agent"), "get", "pods", "agent", "--ignore-not-found", "-o", "name")
	s.ready("agent")
	s.wait("condition=Ready", "sandbox/agent")
	s.t.Logf("resumed after %.1f s", time.Since(begun).Seconds())
}

func (s site) redis(command ...string) string {
	s.t.Helper()
	return s.exec("agent", "redis", append([]string{"redis-cli"}, command...)...)
}

// answers waits until an exec is taken: it is refused until the operation that brought the VM is over.
func (s site) answers() {
	s.t.Helper()
	s.eventually("an answer of redis", has("PONG"), "exec", "agent", "-c", "redis", "--", "redis-cli", "PING")
}

// TestSandbox: agent-sandbox, as it is, suspends a Sandbox by the end of its pod. The pod that it makes next wakes the
// VM with all that was in memory, on the other node too. A forged pod does not, and neither does a Sandbox that is made
// anew under the name.
func TestSandbox(t *testing.T) {
	s := openSandboxes(t)
	s.apply("agent")
	s.wait("condition=Ready", "sandbox/agent")
	uid := s.kubectl("get", "sandbox", "agent", "-o", "jsonpath={.metadata.uid}")
	record := "default.sbx-" + uid
	nonce := rand.Text()
	s.answers()
	if out := s.redis("SET", "nonce", nonce); out != "OK" {
		t.Fatalf("redis says %q", out)
	}
	counts := func(what, want string) {
		t.Helper()
		s.answers()
		if got := s.redis("GET", "nonce"); got != nonce {
			t.Errorf("%s: the nonce is %q, want %q", what, got, nonce)
		}
		if got := s.redis("INCR", "count"); got != want {
			t.Errorf("%s: it counts to %q, want %q", what, got, want)
		}
	}
	counts("at first", "1")
	node := s.pod("agent").node
	s.suspend(record)

	if err := s.Apply(t.Context(), fmt.Sprintf(thief, uid)); err != nil {
		t.Fatal(err)
	}
	s.afterwards("delete", "--ignore-not-found", "--timeout="+limit.String(), "pod", "thief")
	s.eventually("the refusal", has("Suspended"), "get", "events", "--field-selector",
		"involvedObject.name=thief,reason=VMRefused", "-o", "jsonpath={.items[*].message}")
	s.kubectl("delete", "--timeout="+limit.String(), "pod", "thief")

	s.afterwards("uncordon", node.Name)
	s.kubectl("cordon", node.Name)
	s.resume()
	if now := s.pod("agent").node; now == node {
		t.Errorf("node %s is cordoned, and has the pod", node.Name)
	}
	counts("on the other node", "2")
	s.kubectl("uncordon", node.Name)
	s.suspend(record)
	s.resume()
	counts("once more", "3")
	s.suspend(record)

	s.kubectl("delete", "--timeout="+limit.String(), "sandbox", "agent")
	s.apply("agent")
	s.wait("condition=Ready", "sandbox/agent")
	s.answers()
	if got := s.redis("EXISTS", "nonce", "count"); got != "0" {
		t.Errorf("a Sandbox that was made anew has %q of what the one before had in memory", got)
	}
	s.eventually("the end of the record", func(out string) bool { return strings.TrimSpace(out) == "" }, "get", "vmrecord",
		record, "--ignore-not-found", "-o", "name")
	if log, err := s.OperatorLog(); err != nil || strings.Contains(log, "forbidden") {
		t.Errorf("the operator lacks rights: %v: %s", err, log)
	}
}
