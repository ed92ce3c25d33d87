package bundle

import (
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/guest/stage"
)

// Each namespace and mount option that is offered to a client is taken from a config.json.
func TestOfferedFeaturesAreTaken(t *testing.T) {
	f := Features()
	for _, name := range f.Linux.Namespaces {
		oci := &specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.LinuxNamespaceType(name)}}}}
		for _, other := range ownNamespaces {
			if string(other) != name {
				oci.Linux.Namespaces = append(oci.Linux.Namespaces, specs.LinuxNamespace{Type: other})
			}
		}
		if err := new(Bundle).readNamespaces(oci); err != nil {
			t.Errorf("namespace %s is offered: %v", name, err)
		}
	}
	for _, option := range f.MountOptions {
		if option == "bind" || option == "rbind" {
			continue // a bind mount is a copy: readCopy
		}
		m := specs.Mount{Type: "tmpfs", Source: "tmpfs", Destination: "/x", Options: []string{option}}
		alone, pod := &specs.Spec{Mounts: []specs.Mount{m}}, &specs.Spec{Mounts: []specs.Mount{m}}
		if err := new(Bundle).readMounts(alone, false); err != nil {
			t.Errorf("mount option %s is offered: %v", option, err)
		}
		if err := (&Bundle{Member: &Member{}}).readPodMounts(pod, cri{}, false); err != nil {
			t.Errorf("mount option %s is offered to a pod: %v", option, err)
		}
		for _, m := range append(alone.Mounts, pod.Mounts...) {
			if err := stage.CheckMount(stage.Mount{Type: m.Type, Target: m.Destination, Options: m.Options}); err != nil {
				t.Errorf("mount option %s reaches a guest: %v", option, err)
			}
		}
	}
	if !slices.Contains(f.MountOptions, "rro") {
		t.Error("recursive read-only mounts are not offered: CRI looks for rro")
	}
	if len(f.Linux.Namespaces) != 7 || len(f.MountOptions) < 30 || len(f.Linux.Capabilities) < 41 || len(f.Hooks) != 4 {
		t.Errorf("offered are %+v %+v", f, f.Linux)
	}
}
