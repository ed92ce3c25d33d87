//go:build integration

package pod

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// shown is what a container prints of the files that its pod has for it.
const shown = `hostname; cat /etc/hostname; grep -c localhost /etc/hosts; cat /etc/resolv.conf
echo written > /dev/shm/note; stat -f -c %T /dev/shm; cat /proc/sys/net/ipv4/ip_unprivileged_port_start`

// sandboxAPI is the life of a pod of a runtime handler with sandboxer = "shim". containerd is killed while it runs.
func (n *node) sandboxAPI(t *testing.T) {
	dns := object{"servers": []string{"10.9.8.7"}, "searches": []string{"team"}}
	config := n.sandbox("asked", object{"dns_config": dns})
	pod := n.crictl("runp", "--runtime", "godwit-sandbox", config)
	run := n.runner(pod, config)
	first := run("first", "trap 'exit 7' TERM; while :; do sleep 1; done", nil)
	server := run("server", "mkdir /srv; echo served > /srv/index.html; httpd -f -p 8080 -h /srv", nil)
	want := "asked\nasked\n1\nsearch team\nnameserver 10.9.8.7\ntmpfs\n0"
	if out := n.crictl("exec", first, "sh", "-c", shown); out != want {
		t.Errorf("a container has %q, want %q", out, want)
	}
	if out := n.crictl("exec", server, "cat", "/dev/shm/note"); out != "written" {
		t.Errorf("another container has %q in the memory that they share", out)
	}
	n.forwards(pod)
	if err := n.Containerd.Kill(); err != nil {
		t.Fatal(err)
	}
	n.eventually("the pod of another containerd", has("SANDBOX_READY"), "inspectp", pod)
	n.eventually("a container of another containerd", has("served"), "exec", first, "wget", "-q", "-O", "-",
		"http://127.0.0.1:8080/")
	if out := n.crictl("statsp", "-o", "json"); !strings.Contains(out, pod) {
		t.Errorf("stats of pods: %s", out)
	}
	// godwitd tries to reach a containerd that was away after a pause. Until then it warns that it knows no names.
	if err := harness.Poll(t.Context(), 30*time.Second, func(ctx context.Context) error {
		out, err := n.RunGodwit(ctx, "-n", "k8s.io", "ps", "-o", "json")
		if err == nil && !strings.Contains(out, `"warning": ""`) {
			err = errors.New(out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	n.seesPod(t, pod, "team/asked")
	_, err := n.RunGodwit(t.Context(), "-n", "k8s.io", "exec", pod, "true")
	refusal{want: "crictl exec"}.check(t, "exec of a pod", err)
	n.crictl("stop", "--timeout", "20", first)
	n.eventually("the end of the first", has(`"exitCode": 7`), "inspect", first)
	n.crictl("rm", first)
	n.crictl("stopp", pod)
	n.eventually("the end of the server", has("CONTAINER_EXITED"), "inspect", server)
	// At once: StopPodSandbox is answered when the VMM is gone. Another one may be that of the maker of templates.
	if vmms, err := n.VMMs(); err != nil || len(vmms) != 0 {
		t.Errorf("VMMs %v are left by a pod that is stopped: %v", vmms, err)
	}
	n.crictl("rmp", pod)
	if out := n.crictl("pods", "-q") + n.crictl("ps", "-a", "-q"); out != "" {
		t.Errorf("pods or containers are left: %s", out)
	}
}
