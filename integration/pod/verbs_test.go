//go:build integration

package pod

import (
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// TestVerbs: the command line shows a pod as one VM. What CRI has a call for is refused, with that call.
func TestVerbs(t *testing.T) {
	n := open(t, harness.Newest)
	config := n.sandbox("web", nil)
	pod := n.crictl("runp", "--runtime", "godwit", config)
	var ids []string
	for _, name := range []string{"first", "second"} {
		id := n.crictl("create", "--no-pull", pod, n.container(name, "echo hello; sleep 10000", nil), config)
		n.crictl("start", id)
		ids = append(ids, id)
	}
	godwit := func(args ...string) (string, error) {
		return n.RunGodwit(t.Context(), append([]string{"-n", "k8s.io"}, args...)...)
	}
	n.seesPod(t, pod, "team/web")
	if out, err := godwit("ps", "-q"); err != nil || strings.Count(out, "\n") != 1 {
		t.Errorf("a pod is not one VM: %v: %s", err, out)
	}
	for verb, want := range map[string]string{"exec POD true": "crictl exec", "logs POD": "crictl logs",
		"top POD": "crictl exec", "cp POD:/etc/hosts /tmp/hosts": "crictl exec", "stop POD": "crictl stopp",
		"diff POD": "crictl exec", "commit POD a:1": "crictl exec",
		"restart POD": "crictl stopp", "start POD": "crictl runp", "rm POD": "crictl rmp", "rm -f POD": "crictl rmp",
		"exec ONE true": "crictl exec", "logs ONE": "logs", "stop ONE": "is a container of a pod", "rm -f ONE": "crictl"} {
		args := strings.Fields(strings.NewReplacer("POD", pod, "ONE", ids[0]).Replace(verb))
		_, err := godwit(args...)
		refusal{want: want}.check(t, verb, err)
	}
	for _, id := range ids {
		if out := n.crictl("exec", id, "echo", "lives"); out != "lives" {
			t.Errorf("after all that a container says %q", out)
		}
	}
	n.crictl("rmp", "-f", pod)
	if out, err := godwit("ps", "-q"); err != nil || strings.TrimSpace(out) != "" {
		t.Errorf("a pod that was removed is shown: %v: %s", err, out)
	}
}

// seesPod wants the command line to show a pod of two containers by its name, and to know it by the id of its sandbox.
func (n *node) seesPod(t *testing.T, pod, name string) {
	t.Helper()
	shown := func(want []string, args ...string) {
		t.Helper()
		out, err := n.RunGodwit(t.Context(), append([]string{"-n", "k8s.io"}, args...)...)
		for _, text := range want {
			if err != nil || !strings.Contains(out, text) {
				t.Errorf("godwit %q has no %q: %v: %s", args, text, err, out)
			}
		}
	}
	shown([]string{name + " ", "2 containers", "running"}, "ps")
	shown([]string{`"pod": "` + name + `"`, `"containers": 2`}, "ps", "-o", "json")
	shown([]string{`"pod": "` + name + `"`, `"status": "running"`}, "inspect", pod)
	shown([]string{pod[:12]}, "stats", "--no-stream")
	shown([]string{pod[:12]}, "stats", "--no-stream", pod)
}
