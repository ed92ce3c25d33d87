package tasks

import (
	"maps"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
)

func namespaceList(net string) []specs.LinuxNamespace {
	return []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace, Path: net}}
}

// A Spec out of a snapshot opens, runs and joins nothing of the host.
func TestRuntimeSpecLeavesTheHostAlone(t *testing.T) {
	proc := specs.Mount{Destination: "/proc", Type: "proc", Source: "proc"}
	sp := &spec.Spec{Namespace: "default", ID: "web", Container: &spec.Container{OCI: &specs.Spec{
		Process: &specs.Process{Args: []string{"/bin/sh"}, Cwd: "/"},
		Root:    &specs.Root{Path: "/", Readonly: true},
		Hooks:   &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/evil"}}, Poststop: []specs.Hook{{Path: "/bin/evil"}}},
		Mounts: []specs.Mount{
			proc,
			{Destination: "/a", Type: "bind", Source: "/etc/shadow"},
			{Destination: "/b", Type: "tmpfs", Source: "/etc/shadow", Options: []string{"rbind"}},
			{Destination: "/c", Source: "/etc/shadow", Options: []string{"bind"}},
			{Destination: "/d", Type: "ext4", Source: "/dev/sda"},
		},
		Annotations: map[string]string{
			spec.AnnotationPrefix + "memory": "1GiB", spec.AnnotationDigest: "sha256:aa", "io.kubernetes.cri.sandbox-id": "x",
			"other/hook": "/bin/evil",
		},
		Linux: &specs.Linux{
			CgroupsPath: "/system.slice", Devices: []specs.LinuxDevice{{Path: "/dev/sda"}},
			Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: "/proc/1/ns/pid"},
				{Type: specs.NetworkNamespace, Path: "/proc/1/ns/net"}},
		},
	}}}
	before := sp.Clone()
	got, err := runtimeSpec(sp, "/run/netns/x")
	if err != nil {
		t.Fatal(err)
	}
	want := &specs.Spec{
		Process: &specs.Process{Args: []string{"/bin/sh"}, Cwd: "/"},
		Root:    &specs.Root{Path: "rootfs", Readonly: true}, Mounts: []specs.Mount{proc},
		Annotations: map[string]string{spec.AnnotationPrefix + "memory": "1GiB"},
		Linux:       &specs.Linux{Namespaces: namespaceList("/run/netns/x")},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, sp); diff != "" {
		t.Errorf("the Spec was changed:\n%s", diff)
	}
}

func TestRuntimeSpecOfAnOddSpec(t *testing.T) {
	for name, c := range map[string]struct {
		container *spec.Container
		is        func(error) bool
	}{
		"VM disk":    {nil, errdefs.IsNotImplemented},
		"no OCI":     {&spec.Container{}, errdefs.IsNotImplemented},
		"no process": {&spec.Container{OCI: &specs.Spec{Linux: &specs.Linux{}}}, errdefs.IsInvalidArgument},
		"no linux":   {&spec.Container{OCI: &specs.Spec{Process: &specs.Process{}}}, errdefs.IsInvalidArgument},
	} {
		sp := &spec.Spec{Namespace: "default", ID: "web", Container: c.container}
		if _, err := runtimeSpec(sp, ""); !c.is(err) {
			t.Errorf("%s: %v", name, err)
		}
		if terminal(sp) {
			t.Errorf("%s: a terminal", name)
		}
	}
}

func TestSetNetNS(t *testing.T) {
	for name, linux := range map[string]*specs.Linux{
		"no linux":     nil,
		"not named":    {Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}}},
		"another path": {Namespaces: namespaceList("/old")},
	} {
		s := &specs.Spec{Linux: linux}
		setNetNS(s, "/new")
		var got []string
		for _, ns := range s.Linux.Namespaces {
			if ns.Type == specs.NetworkNamespace {
				got = append(got, ns.Path)
			}
		}
		if diff := cmp.Diff([]string{"/new"}, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// object is a container object with these labels and annotations.
func object(t *testing.T, labels, annotations map[string]string) *containers.Container {
	t.Helper()
	any, err := typeurl.MarshalAny(&specs.Spec{Annotations: annotations})
	if err != nil {
		t.Fatal(err)
	}
	return &containers.Container{ID: "web", Labels: labels, Spec: any}
}

func annotations(t *testing.T, obj *containers.Container) map[string]string {
	t.Helper()
	var s specs.Spec
	if err := typeurl.UnmarshalTo(obj.Spec, &s); err != nil {
		t.Fatal(err)
	}
	return s.Annotations
}

// A container knows whose order it is under, through the VM's sleep and its return.
func TestMarksOfAContainer(t *testing.T) {
	const digest = "sha256:aa"
	order := record.Intent{Operation: "op", Attempt: 2, Digest: digest}
	user := map[string]string{"user": "x"}
	obj := object(t, map[string]string{"user": "x", labelOrder: "old/1", labelNew: "true"}, user)
	if err := stop(obj, digest, "", "/own"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"user": "x", LabelDigest: digest, labelStopped: "true"},
		obj.Labels); diff != "" {
		t.Errorf("labels of a VM that sleeps (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"user": "x", spec.AnnotationDigest: digest}, annotations(t, obj)); diff != "" {
		t.Errorf("annotations of a VM that sleeps (-want +got):\n%s", diff)
	}
	if err := ready(obj, "/ns", order); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"user": "x", labelOrder: "op/2"}, obj.Labels); diff != "" {
		t.Errorf("labels of a VM that returns (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(user, annotations(t, obj)); diff != "" {
		t.Errorf("annotations of a VM that returns (-want +got):\n%s", diff)
	}
}

// A namespace that was made for a wake is named by the container no longer than it is
// there; one of the user's stays.
func TestNamespaceGoesWithTheVM(t *testing.T) {
	for path, want := range map[string]string{"/own": "", "/run/netns/mine": "/run/netns/mine"} {
		obj := object(t, nil, nil)
		if err := edit(obj, func(s *specs.Spec) { setNetNS(s, path) }); err != nil {
			t.Fatal(err)
		}
		if err := stop(obj, "sha256:aa", "", "/own"); err != nil {
			t.Fatal(err)
		}
		var s specs.Spec
		if err := typeurl.UnmarshalTo(obj.Spec, &s); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(namespaceList(want)[1:], s.Linux.Namespaces); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

// A container of nerdctl's with hooks makes its network by itself; others do not.
func TestNerdctlConnectsItsContainers(t *testing.T) {
	networks := map[string]string{annotationNetworks: `["bridge"]`}
	hooks := &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/hook"}}}
	for name, c := range map[string]struct {
		spec specs.Spec
		want bool
	}{
		"nerdctl": {specs.Spec{Annotations: networks, Hooks: hooks}, true}, "no hooks": {specs.Spec{Annotations: networks},
			false}, "not nerdctl": {specs.Spec{Hooks: hooks}, false},
	} {
		if got := connects(&c.spec); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// containerd's restart monitor sees the container of a VM that runs, and not that of one that sleeps or is about to
// run. A status that a user has set since then stays.
func TestTheRestartMonitorSeesNoSleepingVM(t *testing.T) {
	policy := map[string]string{"containerd.io/restart.policy": "always", labelStatus: "running"}
	obj := object(t, maps.Clone(policy), nil)
	order := record.Intent{Operation: "op", Attempt: 1}
	for range 2 { // an operation may be repeated
		if err := stop(obj, "sha256:aa", "", "/own"); err != nil {
			t.Fatal(err)
		}
	}
	if _, seen := obj.Labels[labelStatus]; seen {
		t.Errorf("labels of a VM that sleeps: %v", obj.Labels)
	}
	if err := ready(obj, "", order); err != nil {
		t.Fatal(err)
	}
	if _, seen := obj.Labels[labelStatus]; seen {
		t.Errorf("labels of a VM that is about to run: %v", obj.Labels)
	}
	watch(obj)
	policy[labelOrder] = orderMark(order)
	if diff := cmp.Diff(policy, obj.Labels); diff != "" {
		t.Errorf("labels of a VM that runs again (-want +got):\n%s", diff)
	}
	if err := stop(obj, "sha256:aa", "", "/own"); err != nil {
		t.Fatal(err)
	}
	label(obj, labelStatus, "stopped")
	watch(obj)
	if obj.Labels[labelStatus] != "stopped" || obj.Labels[labelWanted] != "" {
		t.Errorf("labels after somebody has set them: %v", obj.Labels)
	}
}

// What an order has made stays its own when godwitd is killed in between: Undo removes
// it. What another order has made does not.
func TestOrderFindsItsOwnContainer(t *testing.T) {
	order := record.Intent{Operation: "op", Attempt: 2}
	for mark, want := range map[string]string{"op/2": "true", "op/1": "", "other/2": "", "": ""} {
		obj := object(t, map[string]string{labelOrder: mark, labelNew: "true"}, nil)
		if err := ready(obj, "", order); err != nil {
			t.Fatal(err)
		}
		if got := obj.Labels[labelNew]; got != want {
			t.Errorf("made by %q: %s is %q, want %q", mark, labelNew, got, want)
		}
	}
	if err := ready(object(t, nil, nil), "", order); err != nil {
		t.Errorf("no labels: %v", err)
	}
}
