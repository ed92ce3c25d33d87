//go:build integration

package nerdctl

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

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
	if answer == nil || !strings.Contains(answer.Error(), "pods are not supported") || !strings.Contains(answer.Error(), "io.kubernetes.cri.") {
		t.Errorf("RunPodSandbox: %v", answer)
	}
	if left := s.Ctr(t, "--namespace", "k8s.io", "containers", "ls", "-q"); left != "" {
		t.Errorf("containers are left: %s", left)
	}
}

// runPod calls RunPodSandbox as a kubelet does. The message has few fields, so it is
// written by hand: no module of Kubernetes is needed.
func runPod(ctx context.Context, socket, handler string) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	metadata := text(text(text(nil, 1, "pod"), 2, "uid"), 3, "default")
	config := text(text(nil, 1, string(metadata)), 2, "pod")
	request := text(text(nil, 1, string(config)), 2, handler)
	var response []byte
	return conn.Invoke(ctx, "/runtime.v1.RuntimeService/RunPodSandbox", &request, &response, grpc.ForceCodec(raw{}))
}

// text appends a field of bytes.
func text(to []byte, field protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(to, field, protowire.BytesType), value)
}

// raw carries messages that are bytes already.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) ([]byte, error) {
	if b, ok := v.(*[]byte); ok {
		return *b, nil
	}
	return nil, fmt.Errorf("marshal %T: it is no message", v)
}

func (raw) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("unmarshal %T: it is no message", v)
	}
	*b = append([]byte(nil), data...)
	return nil
}
