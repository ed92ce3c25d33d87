package tasks

import (
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"google.golang.org/protobuf/types/known/anypb"
)

// A sandbox has the name of its pod by CRI's annotations, and the containers that name it.
func TestPodOfASandbox(t *testing.T) {
	spec := `{"annotations": {"io.kubernetes.cri.sandbox-name": "web", "io.kubernetes.cri.sandbox-namespace": "team"}}`
	member := map[string]string{"io.cri-containerd.kind": "container"}
	all := []containers.Container{
		{ID: "a", SandboxID: "s", Labels: member}, {ID: "b", SandboxID: "s", Labels: member},
		{ID: "c", SandboxID: "other", Labels: member}, {ID: "s", SandboxID: "s"},
	}
	if got := podOf(containers.Container{Spec: &anypb.Any{Value: []byte(spec)}}); got != "team/web" {
		t.Errorf("the pod is %q", got)
	}
	for _, bad := range []string{"", "no JSON", `{"annotations": {}}`} {
		if got := podOf(containers.Container{Spec: &anypb.Any{Value: []byte(bad)}}); got != "" {
			t.Errorf("the pod of %q is %q", bad, got)
		}
	}
	if got := membersOf(all, "s"); got != 2 {
		t.Errorf("the pod has %d containers", got)
	}
}
