//go:build integration

package k8s

import (
	"strings"
	"testing"
)

// TestPod: a pod runs in a VM. kubectl reads its log, runs commands in each of its containers and deletes it.
func TestPod(t *testing.T) {
	s := open(t)
	s.apply("pod")
	s.ready("web")
	if out := s.kubectl("logs", "web", "-c", "client"); out != "hello from client" {
		t.Errorf("the log is %q", out)
	}
	if out := s.exec("web", "client", "wget", "-q", "-O", "-", "http://127.0.0.1:8080/"); out != "served" {
		t.Errorf("the client got %q from the server over localhost", out)
	}
	if out := s.exec("web", "server", "hostname"); out != "web" {
		t.Errorf("the host is %q", out)
	}
	if _, err := s.Kubectl(t.Context(), "exec", "web", "-c", "client", "--", "sh", "-c", "exit 7"); err == nil ||
		!strings.Contains(err.Error(), "exit code 7") {
		t.Errorf("a command that ends with 7: %v", err)
	}
	vms := 0
	for _, n := range s.Nodes() {
		pids, err := n.VMMs()
		if err != nil {
			t.Fatal(err)
		}
		vms += len(pids)
	}
	if *handler == Godwit && vms != 1 {
		t.Errorf("a pod of two containers has %d VMMs", vms)
	}
}

// TestConfigMap: a change of a ConfigMap is seen in the container, which was not started again.
func TestConfigMap(t *testing.T) {
	s := open(t)
	s.apply("configmap")
	s.ready("reader")
	if out := s.exec("reader", "main", "cat", "/settings/key"); out != "first" {
		t.Errorf("the ConfigMap has %q", out)
	}
	s.kubectl("patch", "configmap", "settings", "-p", `{"data": {"key": "second"}}`)
	s.eventually("the change", has("second"), "exec", "reader", "--", "cat", "/settings/key")
	if c := s.statuses("reader")["main"]; c.RestartCount != 0 {
		t.Errorf("the container was started again: %+v", c)
	}
}

// TestTerminationMessage: the last words of a container are in its pod's status.
func TestTerminationMessage(t *testing.T) {
	s := open(t)
	s.apply("termination")
	c := s.becomes("the end", "words", "main", func(c status) bool { return c.State.Terminated != nil })
	if end := c.State.Terminated; end.ExitCode != 3 || end.Message != "last words\n" {
		t.Errorf("the container ended with %+v", end)
	}
	// Without a file, a container that failed has the end of its log as its last words.
	c = s.becomes("the end", "words", "fallback", func(c status) bool { return c.State.Terminated != nil })
	if end := c.State.Terminated; end.ExitCode != 4 || end.Message != "only in the log\n" {
		t.Errorf("the container without a file ended with %+v", end)
	}
}

// TestJob: three pods of a Job end well, and the Job is complete.
func TestJob(t *testing.T) {
	s := open(t)
	s.apply("job")
	s.wait("condition=Complete", "job/three")
	if out := s.kubectl("logs", "-l", "job-name=three", "--prefix=false"); strings.Count(out, "done") != 3 {
		t.Errorf("the logs are %q", out)
	}
}

// TestInitContainers: init containers run one after the other before the main one. They leave it a file.
func TestInitContainers(t *testing.T) {
	s := open(t)
	s.apply("init")
	s.ready("prepared")
	if out := s.exec("prepared", "main", "cat", "/shared/order"); out != "first\nsecond\nmain" {
		t.Errorf("the containers ran in the order %q", out)
	}
	for _, name := range []string{"first", "second"} {
		if end := s.statuses("prepared")[name].State.Terminated; end == nil || end.ExitCode != 0 {
			t.Errorf("init container %s ended with %+v", name, end)
		}
	}
}
