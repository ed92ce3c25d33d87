package bundle

import (
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
		m := stage.Mount{Type: "tmpfs", Source: "tmpfs", Target: "/x", Options: []string{option}}
		if option == "bind" || option == "rbind" {
			continue // a bind mount is a copy: readCopy
		}
		if err := stage.CheckMount(m); err != nil {
			t.Errorf("mount option %s is offered: %v", option, err)
		}
	}
	if len(f.Linux.Namespaces) != 6 || len(f.MountOptions) < 30 || len(f.Linux.Capabilities) < 41 || len(f.Hooks) != 4 {
		t.Errorf("offered are %+v %+v", f, f.Linux)
	}
}
