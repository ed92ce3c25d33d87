package join

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/cloudhypervisor"
	"godwit.dev/godwit/vmm/qemu"
)

// What the configuration says decides; an empty kind is auto, which takes QEMU where
// there is no Cloud Hypervisor. One that is configured and does not run says why when it is asked.
func TestPickFromConfig(t *testing.T) {
	for _, tt := range []struct{ kind, want string }{
		{"", qemu.Name}, {"auto", qemu.Name}, {qemu.Name, qemu.Name}, {cloudhypervisor.Name, cloudhypervisor.Name},
	} {
		cfg := config.Default()
		cfg.StateDir, cfg.VMM.Kind, cfg.VMM.CloudHypervisor = t.TempDir(), tt.kind, "/nowhere/ch"
		d, err := newDrivers(cfg)
		if err != nil {
			t.Fatal(err)
		}
		driver, err := d.pick(t.Context(), "")
		if err != nil || driver != d.table[tt.want] {
			t.Errorf("%q: %T, %v, want %s", tt.kind, driver, err, tt.want)
		}
		if tt.want != cloudhypervisor.Name {
			continue
		}
		if _, err := driver.Probe(t.Context()); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), "vmm.cloud_hypervisor") {
			t.Errorf("probe: %v", err)
		}
	}
}

// auto decides once: the VMs of a node do not change their VMM while it runs.
func TestAutoDecidesOnce(t *testing.T) {
	probes := 0
	d := &drivers{kind: auto, table: map[string]vmm.Driver{
		qemu.Name: named{name: qemu.Name}, cloudhypervisor.Name: named{name: cloudhypervisor.Name, probes: &probes},
	}}
	for range 3 {
		if driver, err := d.pick(t.Context(), ""); err != nil || driver.(named).name != cloudhypervisor.Name {
			t.Errorf("%v, %v", driver, err)
		}
	}
	if probes != 1 {
		t.Errorf("asked %d times", probes)
	}
}

// named is a driver that is there, or says why not.
type named struct {
	vmm.Driver
	name   string
	err    error
	probes *int
}

func (n named) Probe(context.Context) (vmm.Facts, error) {
	if n.probes != nil {
		*n.probes++
	}
	return vmm.Facts{Name: n.name}, n.err
}

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
