package tasks

import (
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
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

// TestPodsOfTheSandboxAPI: a pod whose sandbox has no container is listed with its name, its VM and its containers. One
// that cannot be read is an error, and hides no other.
func TestPodsOfTheSandboxAPI(t *testing.T) {
	kept := func(text string) map[string]typeurl.Any {
		return map[string]typeurl.Any{"metadata": &anypb.Any{Value: []byte(text)}}
	}
	made := time.Unix(1700000000, 0)
	store := &shimSandboxes{all: []sandbox.Sandbox{
		{ID: "bad", Sandboxer: "shim", Extensions: kept("{")}, {ID: "pause", Sandboxer: "podsandbox"},
		{ID: "s1", Sandboxer: "shim", CreatedAt: made, Extensions: kept(`{"Metadata": {"Config": {"metadata":
			{"namespace": "team", "name": "web"}, "annotations": {"godwit.dev/vm": "shop"}}}}`)},
	}}
	ctr, err := containerd.New("", containerd.WithServices(containerd.WithSandboxStore(store)))
	if err != nil {
		t.Fatal(err)
	}
	member := map[string]string{"io.cri-containerd.kind": "container"}
	all, err := (&Client{containerd: ctr}).podsIn(t.Context(), "k8s.io", []containers.Container{
		{ID: "a", SandboxID: "s1", Labels: member}, {ID: "b", SandboxID: "other", Labels: member}})
	if !errdefs.IsDataLoss(err) || len(all) != 1 {
		t.Fatalf("pods %v: %v", all, err)
	}
	if p := all[0]; p.GetVm().GetId() != "team.shop" || p.GetPod() != "team/web" || p.GetContainers() != 1 ||
		p.GetCreatedUnixNano() != made.UnixNano() {
		t.Errorf("the pod is %v", p)
	}
}
