//go:build integration

package k8s

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// TestProbes: a Deployment whose pod has a probe of each kind. It is available, and the one whose probe fails is ended
// and started again.
func TestProbes(t *testing.T) {
	s := open(t)
	s.apply("probes")
	s.wait("condition=Available", "deployment/probed")
	pod := s.kubectl("get", "pods", "-l", "app=probed", "-o", "jsonpath={.items[0].metadata.name}")
	for _, name := range []string{"exec", "http", "tcp"} {
		if c := s.statuses(pod)[name]; !c.Ready || c.RestartCount != 0 {
			t.Errorf("container %s: %+v", name, c)
		}
	}
	s.exec(pod, "http", "rm", "/srv/index.html")
	s.becomes("a restart by the http probe", pod, "http", func(c status) bool { return c.RestartCount > 0 && c.Ready })
	s.exec(pod, "exec", "rm", "/tmp/alive")
	s.becomes("a restart by the exec probe", pod, "exec", func(c status) bool { return c.RestartCount > 0 && c.Ready })
	if c := s.statuses(pod)["tcp"]; c.RestartCount != 0 {
		t.Errorf("the container next to them was started again: %+v", c)
	}
}

// TestCrashLoop: a container that ends again and again is started again, later each time. The one next to it lives on.
func TestCrashLoop(t *testing.T) {
	s := open(t)
	s.apply("crashloop")
	s.becomes("CrashLoopBackOff", "loop", "dying", func(c status) bool {
		return c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff" && c.RestartCount >= 2
	})
	c := s.statuses("loop")
	if end := c["dying"].LastState.Terminated; end == nil || end.ExitCode != 5 {
		t.Errorf("the last end of the container: %+v", end)
	}
	if c["living"].State.Running == nil || c["living"].RestartCount != 0 {
		t.Errorf("the container next to it: %+v", c["living"])
	}
	if out := s.exec("loop", "living", "echo", "alive"); out != "alive" {
		t.Errorf("the container next to it says %q", out)
	}
}

// TestOutOfMemory: the container that takes more than its limit is OOMKilled. The one next to it lives on.
func TestOutOfMemory(t *testing.T) {
	s := open(t)
	s.apply("oom")
	c := s.becomes("OOMKilled", "greedy", "main", func(c status) bool { return c.State.Terminated != nil })
	if end := c.State.Terminated; end.Reason != "OOMKilled" || end.ExitCode != 128+int(syscall.SIGKILL) {
		t.Errorf("the container ended with %+v", end)
	}
	if c := s.statuses("greedy")["modest"]; c.State.Running == nil || c.RestartCount != 0 {
		t.Errorf("the container next to it: %+v", c)
	}
}

// TestSidecar: a sidecar starts before the main container and runs next to it. It is started again when it ends.
// It does not keep a pod whose main container has ended.
func TestSidecar(t *testing.T) {
	s := open(t)
	s.apply("sidecar")
	s.ready("attended")
	if out := s.exec("attended", "main", "cat", "/shared/order"); !strings.HasPrefix(out, "sidecar\nmain") {
		t.Errorf("the containers started in the order %q", out)
	}
	s.exec("attended", "helper", "touch", "/tmp/end")
	s.becomes("a restart of the sidecar", "attended", "helper", func(c status) bool {
		return c.RestartCount == 1 && c.State.Running != nil
	})
	s.exec("attended", "main", "touch", "/shared/end")
	s.wait("jsonpath={.status.phase}=Succeeded", "pod/attended")
	if c := s.statuses("attended")["main"]; c.RestartCount != 0 || c.State.Terminated == nil {
		t.Errorf("the main container: %+v", c)
	}
}

// TestDebug: an ephemeral container sees the processes and files of the container that it aims at.
func TestDebug(t *testing.T) {
	s := open(t)
	s.apply("debug")
	s.ready("patient")
	s.kubectl("debug", "patient", "--image=localhost/godwit/busybox:1", "--image-pull-policy=Never", "--target=main",
		"--container=doctor", "--profile=general", "--", "sh", "-c", "ps; cat /proc/1/root/tmp/own; echo; echo end")
	out := s.eventually("the log of the debugging container", has("end"), "logs", "patient", "-c", "doctor")
	if !strings.Contains(out, "sleep 10001") || !strings.Contains(out, "of main") {
		t.Errorf("the debugging container sees\n%s", out)
	}
	if strings.Contains(out, "sleep 10002") {
		t.Errorf("the debugging container sees the processes of another one:\n%s", out)
	}
}

// TestOverhead: what RuntimeClass says that a pod costs in addition is counted by the scheduler. It is enough: a pod
// whose containers use all that they may stays below the limit that kubelet gives it on its host.
func TestOverhead(t *testing.T) {
	s := open(t)
	s.apply("overhead")
	s.ready("counted")
	pod := s.pod("counted")
	if out := s.kubectl("describe", "node", pod.node.Name); !strings.Contains(out, "828Mi") {
		t.Errorf("the node does not count the overhead:\n%s", out)
	}
	s.exec("counted", "main", "dd", "if=/dev/zero", "of=/cache/file", "bs=1M", "count=200")
	s.exec("counted", "main", "sh", "-c", "head -c 90000000 /dev/zero | tail -c 80000000 | wc -c")
	limit, used := pod.memory(t)
	t.Logf("of %d MiB that the host gives the pod, %d of them for its container, it took at most %d MiB", limit>>20, 128,
		used>>20)
	if want := uint64(828 << 20); limit != want || used > limit*95/100 {
		t.Errorf("the pod took %d of %d bytes; kubelet was to give it %d", used, limit, want)
	}
	if c := s.statuses("counted")["main"]; c.RestartCount != 0 {
		t.Errorf("the container was started again: %+v", c)
	}
}

// object is what names a pod on its node.
type object struct {
	node *harness.Node
	uid  string
}

func (s site) pod(name string) object {
	s.t.Helper()
	f := strings.Fields(s.kubectl("get", "pod", name, "-o", "jsonpath={.spec.nodeName} {.metadata.uid}"))
	for _, n := range s.Nodes() {
		if len(f) == 2 && n.Name == f[0] {
			return object{node: n, uid: f[1]}
		}
	}
	s.t.Fatalf("pod %s: %q", name, f)
	return object{}
}

// memory is the limit of a pod on its host, and the most that it took of it.
func (p object) memory(t *testing.T) (limit, most uint64) {
	t.Helper()
	read := func(names ...string) uint64 {
		t.Helper()
		for _, name := range names {
			for _, dir := range []string{"memory/kubepods", "memory/kubepods/burstable", "kubepods", "kubepods/burstable"} {
				data, err := os.ReadFile(p.node.Cgroup(dir, "pod"+p.uid, name))
				if err != nil {
					continue
				}
				n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
		t.Fatalf("pod %s has no %v", p.uid, names)
		return 0
	}
	return read("memory.limit_in_bytes", "memory.max"), read("memory.max_usage_in_bytes", "memory.peak")
}

// vmmOf is the VMM that runs on the node of a pod.
func (s site) vmmOf(pod string) int {
	s.t.Helper()
	node := s.pod(pod).node
	pids, err := node.VMMs()
	if err != nil || len(pids) != 1 {
		s.t.Fatalf("node %s has the VMMs %v: %v", node.Name, pids, err)
	}
	return pids[0]
}

// TestRestart: a pod whose VM is killed gets another one from kubelet.
func TestRestart(t *testing.T) {
	s := open(t)
	if *handler != Godwit {
		t.Skip("only a pod that is a VM has a VMM")
	}
	s.apply("restart")
	s.ready("phoenix")
	vmm := s.vmmOf("phoenix")
	before := s.statuses("phoenix")["main"]
	if err := syscall.Kill(vmm, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	after := s.becomes("another start", "phoenix", "main", func(c status) bool {
		return c.RestartCount > 0 && c.State.Running != nil && c.Ready
	})
	if after.ContainerID == before.ContainerID {
		t.Errorf("the container is still %s", before.ContainerID)
	}
	if out := s.exec("phoenix", "main", "echo", "back"); out != "back" {
		t.Errorf("the container says %q", out)
	}
	if now := s.vmmOf("phoenix"); now == vmm {
		t.Error("the VMM is the one that was killed")
	}
}

// TestDaemonsRestart: containerd, kubelet and godwitd are killed and started again below a running pod. It does not
// notice, and goes on to answer.
func TestDaemonsRestart(t *testing.T) {
	s := open(t)
	s.apply("ticker")
	s.ready("ticker")
	node := s.pod("ticker").node
	before := s.statuses("ticker")["main"]
	for what, restart := range map[string]func(context.Context) error{
		"containerd": func(ctx context.Context) error { return again(ctx, node.Containerd, node.StartContainerd) },
		"godwitd":    func(ctx context.Context) error { return again(ctx, node.Godwitd, node.StartGodwitd) },
		"kubelet": func(ctx context.Context) error {
			return again(ctx, s.Kubelet(node), func(ctx context.Context) error { return s.StartKubelet(ctx, node) })
		},
	} {
		count := strings.Count(s.kubectl("logs", "ticker"), "tick")
		if err := restart(t.Context()); err != nil {
			t.Fatalf("restart %s: %v", what, err)
		}
		s.eventually("more of the log after a restart of "+what, func(out string) bool {
			return strings.Count(out, "tick") > count+2
		}, "logs", "ticker")
		s.eventually("exec after a restart of "+what, has("here"), "exec", "ticker", "--", "echo", "here")
		s.wait("condition=Ready", "node/"+node.Name)
		s.ready("ticker")
	}
	after := s.statuses("ticker")["main"]
	if after.RestartCount != before.RestartCount || after.ContainerID != before.ContainerID {
		t.Errorf("the container was started again: %+v, before %+v", after, before)
	}
	lines := strings.Fields(s.kubectl("logs", "ticker"))
	for i := 1; i < len(lines); i++ {
		var was, is int
		if _, err := fmt.Sscanf(lines[i-1]+" "+lines[i], "tick%d tick%d", &was, &is); err != nil || is != was+1 {
			t.Fatalf("the log has %q after %q: %v", lines[i], lines[i-1], err)
		}
	}
}

func again(ctx context.Context, p *harness.Process, start func(context.Context) error) error {
	if err := p.Kill(); err != nil {
		return err
	}
	return start(ctx)
}

// TestResize: a container's limits are changed while it runs, within the size of its VM.
func TestResize(t *testing.T) {
	s := open(t)
	s.apply("resize")
	s.ready("elastic")
	const limits = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max"
	if out := s.exec("elastic", "main", "sh", "-c", limits); out != "67108864\n50000 100000" {
		t.Errorf("the limits are %q", out)
	}
	before := s.statuses("elastic")["main"]
	s.kubectl("patch", "pod", "elastic", "--subresource=resize", "-p", `{"spec": {"containers": [{"name": "main",
		"resources": {"requests": {"memory": "128Mi", "cpu": "800m"}, "limits": {"memory": "128Mi", "cpu": "800m"}}}]}}`)
	s.eventually("the new limits", func(out string) bool { return out == "134217728\n80000 100000\n" }, "exec", "elastic",
		"--", "sh", "-c", limits)
	s.eventually("the new limits in the status", has("128Mi"), "get", "pod", "elastic", "-o",
		"jsonpath={.status.containerStatuses[0].resources.limits.memory}")
	if after := s.statuses("elastic")["main"]; after.RestartCount != 0 || after.ContainerID != before.ContainerID {
		t.Errorf("the container was started again: %+v", after)
	}
}

// TestPortForward: kubectl port-forward reaches a port of the pod, which listens on localhost only.
func TestPortForward(t *testing.T) {
	s := open(t)
	s.apply("localhost")
	s.ready("private")
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if out, err := s.PortForward(ctx, "private", 8080); err != nil || !strings.HasSuffix(out, "served\n") {
		t.Errorf("port-forward: %v: %q", err, out)
	}
}
