//go:build integration

package nerdctl

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/cri"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

const criConfig = `[plugins.'io.containerd.cri.v1.images']
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '` + images.Busybox + `'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.godwit]
    runtime_type = '` + runtimeName + `'
`

// What Kubernetes asks of containerd, a pod's sandbox under godwit's runtime handler, is
// refused by name and leaves nothing.
func TestPodIsRefused(t *testing.T) {
	h := harness.New(t, harness.Options{CRI: true, Containerd: criConfig})
	s := &site{h.Node(0), h}
	s.CheckClean(t)
	all, err := images.Standard("/bin/busybox") // its first one is all that is used
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(h.Dir, "pause.tar")
	if err := images.Write(file, all[0]); err != nil {
		t.Fatal(err)
	}
	s.Ctr(t, "--namespace", "k8s.io", "images", "import", "--local", file)
	var answer error
	if err := s.Enter(func() error { answer = runPod(t.Context(), s.Socket, "godwit"); return nil }); err != nil {
		t.Fatal(err)
	}
	if answer == nil || !strings.Contains(answer.Error(), "pods are not supported") ||
		!strings.Contains(answer.Error(), "io.kubernetes.cri.") {
		t.Errorf("RunPodSandbox: %v", answer)
	}
	if left := s.Ctr(t, "--namespace", "k8s.io", "containers", "ls", "-q"); left != "" {
		t.Errorf("containers are left: %s", left)
	}
}

// runPod calls RunPodSandbox as a kubelet does.
func runPod(ctx context.Context, socket, handler string) error {
	client, err := cri.Dial(socket)
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = client.Call(ctx, "RunPodSandbox", cri.Message{}.Text(1, string(cri.Pod("pod"))).Text(2, handler))
	return err
}
