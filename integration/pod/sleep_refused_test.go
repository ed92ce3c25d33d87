//go:build integration

package pod

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// namesOneVM: verbs that CRI has a call for are refused by the name of the pod's VM too, with that call. A second pod
// of that name is refused on this node and on the other one, and the first one goes on.
func (s *sleeper) namesOneVM(t *testing.T, other *node) {
	for verb, want := range map[string]string{"exec team.sleeper true": "crictl exec",
		"stop team.sleeper": "crictl stopp", "rm -f team.sleeper": "crictl rmp", "start team.sleeper": "crictl runp"} {
		_, err := s.n.RunGodwit(t.Context(), append([]string{"-n", "k8s.io"}, strings.Fields(verb)...)...)
		refusal{want: want}.check(t, verb, err)
	}
	out, err := s.n.RunGodwit(t.Context(), "-n", "k8s.io", "ps")
	if err != nil || !strings.Contains(out, "team/sleeper") || !strings.Contains(out, "3 containers") {
		t.Errorf("the pod is shown as %s: %v", out, err)
	}
	named := object{"annotations": object{"godwit.dev/vm": "sleeper"}}
	_, err = s.n.try(t.Context(), "runp", "--runtime", "godwit", s.n.sandbox("second", named))
	refusal{want: "sandbox " + s.pod + " of pod team/sleeper has VM team.sleeper"}.check(t, "a second pod", err)
	_, err = other.try(t.Context(), "runp", "--runtime", "godwit", other.sandbox("second", named))
	refusal{want: "node a"}.check(t, "a second pod on another node", err)
	for _, n := range []*node{s.n, other} {
		for _, id := range strings.Fields(n.crictl("pods", "-q", "--name", "second")) {
			n.crictl("rmp", "-f", id)
		}
	}
	if out := s.n.crictl("exec", s.reader, "echo", "lives"); out != "lives" {
		t.Errorf("after that a container says %q", out)
	}
}

// wakesNothingElse: a container whose image is not the one of the snapshot is refused by name. A pod that was given up
// while it was armed, and is removed, sleeps on.
func (n *node) wakesNothingElse(t *testing.T) {
	n.numbered(t, 1)
	config := n.sleeperConfig("uid-1")
	pod := n.crictl("runp", "--runtime", "godwit", config)
	run := n.runner(pod, config)
	armed := run("reader", "sleep 100000", object{"linux": n.security(), "mounts": n.volumes("uid-1")})
	changed := n.crictl("create", "--no-pull", pod, n.container("count", counting,
		object{"image": object{"image": numbered(0)}, "linux": n.security()}), config)
	_, err := n.try(t.Context(), "start", changed)
	refusal{want: "its image is " + numbered(0)}.check(t, "another image", err)
	refusal{want: image}.check(t, "another image", err)
	n.wantsOldImage(t, pod, config)
	_, err = n.try(t.Context(), "exec", "-s", armed, "true")
	refusal{want: "count"}.check(t, "an exec in a container that is armed", err)
	n.shows(t, "waits for count")
	n.crictl("rmp", "-f", pod)
	if vmms, err := n.VMMs(); err != nil || len(vmms) != 0 {
		t.Errorf("VMMs %v are left of a wake that was given up: %v", vmms, err)
	}
	n.shows(t, "asleep")
}

// wantsOldImage: the tag of a container's image stands for another image by now. The container is refused with the ids
// of both.
func (n *node) wantsOldImage(t *testing.T, pod, config string) {
	tag := func(from, to string) {
		t.Helper()
		if out, err := n.RunCtr(t.Context(), "-n", "k8s.io", "images", "tag", "--force", from, to); err != nil {
			t.Fatal(out, err)
		}
		n.eventually("the tag that moves", has(n.imageID(from)), "inspecti", to)
	}
	was, is := n.imageID(image), n.imageID(numbered(0))
	tag(image, "localhost/godwit/kept:1")
	tag(numbered(0), image)
	moved := n.crictl("create", "--no-pull", pod, n.container("count", counting,
		object{"metadata": object{"name": "count", "attempt": 2}, "linux": n.security()}), config)
	_, err := n.try(t.Context(), "start", moved)
	refusal{want: is + ", the snapshot has " + image + " with id " + was}.check(t, "a tag that has moved", err)
	tag("localhost/godwit/kept:1", image)
}

// imageID is what CRI calls the content of an image; empty: it does not know that image.
func (n *node) imageID(name string) string {
	out, err := n.try(n.t.Context(), "inspecti", "-o", "go-template", "--template", "{{.status.id}}", name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}

// shows waits until ps has the VM with that status.
func (n *node) shows(t *testing.T, status string) {
	t.Helper()
	err := harness.Poll(t.Context(), bound(), func(ctx context.Context) error {
		out, err := n.RunGodwit(ctx, "-n", "k8s.io", "ps", "-a")
		if err == nil && !strings.Contains(out, status) {
			err = fmt.Errorf("the VM is not %s: %s", status, out)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// stoppedWhileItLeaves: StopPodSandbox comes while the pod is sent to sleep. It is refused as long as the operation
// holds the VM, and names the operation: a kubelet asks again. Then it succeeds, and the pod sleeps.
func (s *sleeper) stoppedWhileItLeaves(t *testing.T) {
	left := make(chan error, 1)
	go func() {
		_, err := s.n.RunGodwit(t.Context(), "-n", "k8s.io", "hibernate", "team.sleeper")
		left <- err
	}()
	s.n.shows(t, "hibernating")
	// The order stands before the shim holds the VM. A stop would end containers until then, and they would not wake.
	err := harness.Poll(t.Context(), bound(), func(ctx context.Context) error {
		if _, err := s.n.try(ctx, "exec", "-s", s.reader, "true"); err == nil {
			return errors.New("no operation holds the VM")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	err = harness.Poll(t.Context(), bound(), func(ctx context.Context) error {
		_, err := s.n.try(ctx, "stopp", s.pod)
		if err != nil && !strings.Contains(err.Error(), "holds VM team.sleeper") {
			t.Errorf("stop a pod that leaves: %v", err)
		}
		return err
	})
	if err != nil {
		t.Errorf("stop a pod that leaves: %v", err)
	}
	if err := <-left; err != nil {
		t.Errorf("hibernate: %v", err)
	}
	s.n.shows(t, "asleep")
}
