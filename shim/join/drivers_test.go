package join

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/cloudhypervisor"
	"godwit.dev/godwit/vmm/qemu"
)

// named is a driver that is there, or says why not.
type named struct {
	vmm.Driver
	name string
	err  error
}

func (n named) Probe(context.Context) (vmm.Facts, error) { return vmm.Facts{Name: n.name}, n.err }

func TestPick(t *testing.T) {
	broken := errors.New("KVM does not work here")
	for name, tt := range map[string]struct {
		kind, wanted string
		hypervisor   error
		want         string
		class        func(error) bool
	}{
		"auto with KVM":             {"auto", "", nil, cloudhypervisor.Name, nil},
		"auto without":              {"auto", "", broken, qemu.Name, nil},
		"annotation":                {"auto", qemu.Name, nil, qemu.Name, nil},
		"annotation beats no KVM":   {"auto", cloudhypervisor.Name, broken, cloudhypervisor.Name, nil},
		"configured":                {qemu.Name, "", nil, qemu.Name, nil},
		"configured, broken":        {cloudhypervisor.Name, "", broken, cloudhypervisor.Name, nil},
		"configured, wanted":        {cloudhypervisor.Name, cloudhypervisor.Name, nil, cloudhypervisor.Name, nil},
		"configured, another":       {qemu.Name, cloudhypervisor.Name, nil, "", errdefs.IsFailedPrecondition},
		"a snapshot of another VMM": {"auto", "firecracker", nil, "", errdefs.IsNotImplemented},
	} {
		t.Run(name, func(t *testing.T) {
			d := &drivers{kind: tt.kind, table: map[string]vmm.Driver{
				qemu.Name:            named{name: qemu.Name},
				cloudhypervisor.Name: named{name: cloudhypervisor.Name, err: tt.hypervisor},
			}}
			driver, err := d.pick(t.Context(), tt.wanted)
			if tt.class != nil {
				if !tt.class(err) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := driver.(named).name; got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
