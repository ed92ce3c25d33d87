//go:build integration

// Package pod runs pods of CRI with crictl, as a person does, in the VMs of godwit.
package pod

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/critest"
	"godwit.dev/godwit/integration/harness"
)

// image is one that the ground has: the whole of busybox.
const image = "localhost/e2e-test-images/busybox:1.29-2"

// node is a node with containerd's CRI plugin.
type node struct {
	*critest.Ground
	t   *testing.T
	dir string // for configurations, on host and node
	// users is the host's root of the user namespace that a kubelet here would give the sleeper; 0: none.
	users int
}

func open(t *testing.T, release harness.Release) *node {
	g, err := critest.Open(t.Context(), release, t.Logf, image)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	n := &node{Ground: g, t: t, dir: t.TempDir()}
	if err := n.StartGodwitd(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.crictl("pull", image)
	return n
}

// bound of a call of crictl, and of what a test waits for.
func bound() time.Duration { return harness.Slow(2 * time.Minute) }

// try runs crictl and answers what it prints.
func (n *node) try(ctx context.Context, args ...string) (string, error) {
	return n.Crictl(ctx, bound(), args...)
}

func (n *node) crictl(args ...string) string {
	n.t.Helper()
	out, err := n.try(n.t.Context(), args...)
	if err != nil {
		n.t.Fatalf("crictl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// file writes a configuration and answers its path.
func (n *node) file(name string, content object) string {
	n.t.Helper()
	path, err := critest.WriteConfig(n.dir, name, content)
	if err != nil {
		n.t.Fatal(err)
	}
	return path
}

type object = map[string]any

// sandbox is the configuration of a pod.
func (n *node) sandbox(name string, more object) string {
	c := object{
		"metadata": object{"name": name, "namespace": "team", "uid": "uid-" + name, "attempt": 1}, "hostname": name,
		"log_directory": n.dir, "linux": object{},
	}
	maps.Copy(c, more)
	return n.file(name, c)
}

// container is the configuration of a container that runs a script.
func (n *node) container(name, script string, more object) string {
	c := object{
		"metadata": object{"name": name, "attempt": 1}, "image": object{"image": image},
		"command": []string{"/bin/sh", "-c", script}, "log_path": name + ".log", "linux": object{},
	}
	maps.Copy(c, more)
	return n.file("c-"+name, c)
}

// runner answers what makes a container of a pod, which runs a script, and starts it.
func (n *node) runner(pod, sandbox string) func(name, script string, more object) (id string) {
	return func(name, script string, more object) string {
		n.t.Helper()
		id := n.crictl("create", "--no-pull", pod, n.container(name, script, more), sandbox)
		n.crictl("start", id)
		return id
	}
}

// eventually waits until crictl's output is what ok wants.
func (n *node) eventually(what string, ok func(out string) bool, args ...string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), bound())
	defer cancel()
	for {
		begun := time.Now()
		out, err := n.try(ctx, args...)
		if err == nil && ok(out) {
			return
		}
		select {
		case <-ctx.Done():
			n.t.Fatalf("%s: %v: %s", what, err, out)
		case <-time.After(harness.Pause(200*time.Millisecond, time.Since(begun))):
		}
	}
}

// TestPod: the life of a pod of three containers in one VM, by crictl alone, on both releases of containerd. On the
// newer one a second pod is made by the sandbox API.
func TestPod(t *testing.T) {
	for _, release := range harness.Releases {
		t.Run(string(release), func(t *testing.T) {
			n := open(t, release)
			testPod(t, n)
			if release == harness.Newest {
				t.Run("sandbox API", n.sandboxAPI)
			}
		})
	}
}

// has is what output is to have in it.
func has(text string) func(string) bool {
	return func(out string) bool { return strings.Contains(out, text) }
}

func testPod(t *testing.T, n *node) {
	config := n.sandbox("web", nil)
	pod := n.crictl("runp", "--runtime", "godwit", config)
	run := n.runner(pod, config)
	first := run("first", "echo hello from first; trap 'exit 7' TERM; while :; do sleep 1; done", nil)
	server := run("server", "mkdir /srv; echo served > /srv/index.html; httpd -f -p 8080 -h /srv", nil)
	client := run("client", "sleep 10000", object{"linux": object{"resources": object{"memory_limit_in_bytes": 64 << 20}}})
	served := func(when string) {
		t.Helper()
		if out := n.crictl("exec", client, "wget", "-q", "-O", "-", "http://127.0.0.1:8080/"); out != "served" {
			t.Errorf("%s: a container got %q from another one over localhost", when, out)
		}
	}
	served("all run")
	n.forwards(pod)
	out := n.crictl("exec", first, "sh", "-c", "hostname; ls /srv 2>&1; true")
	if !strings.HasPrefix(out, "web\n") || strings.Contains(out, "index") {
		t.Errorf("a container sees %q", out)
	}
	n.eventually("logs of the first", has("hello from first"), "logs", first)
	if vmms, err := n.VMMs(); err != nil || len(vmms) != 1 {
		t.Errorf("the pod has VMMs %v: %v", vmms, err)
	}
	if out := n.crictl("stats", "-o", "json"); !strings.Contains(out, client) {
		t.Errorf("stats: %s", out)
	}
	n.crictl("stop", "--timeout", "20", first)
	n.eventually("the end of the first", has(`"exitCode": 7`), "inspect", first)
	n.crictl("rm", first)
	again := run("first", "echo again; exit 3", nil)
	n.eventually("the end of the second try", has(`"exitCode": 3`), "inspect", again)
	served("another container has ended")
	n.crictl("stopp", pod)
	for _, id := range []string{server, client} {
		n.eventually("the end of "+id, has("CONTAINER_EXITED"), "inspect", id)
	}
	n.crictl("rmp", pod)
	if out := n.crictl("pods", "-q") + n.crictl("ps", "-a", "-q"); out != "" {
		t.Errorf("pods or containers are left: %s", out)
	}
	if vmms, err := n.VMMs(); err != nil || len(vmms) != 0 {
		t.Errorf("VMMs %v are left: %v", vmms, err)
	}
}

// forwarded gets a page from a port of the pod through crictl port-forward, and then asks a port without a listener.
const forwarded = `"$@" >/dev/null 2>&1 & trap "kill $!" EXIT
get() { exec 3<>/dev/tcp/127.0.0.1/$1 && printf 'GET / HTTP/1.0\r\n\r\n' >&3 && cat <&3; }
until out=$(get 18080 2>/dev/null | grep served); do sleep 0.1; done
echo "$out$(get 18081 2>&1 | grep served)"`

// forwards wants crictl port-forward to reach the pod's port 8080.
func (n *node) forwards(pod string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), bound())
	defer cancel()
	out, err := n.Run(ctx, "bash", append([]string{"-c", forwarded, "bash"},
		n.CrictlArgs(bound(), "port-forward", pod, "18080:8080", "18081:8081")...)...)
	if err != nil || strings.TrimSpace(out) != "served" {
		n.t.Errorf("port-forward: %v: %q", err, out)
	}
}
