package cloudhypervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm/kvm"
)

func TestProbe(t *testing.T) {
	for name, tt := range map[string]struct {
		script, version, remedy string
	}{
		"release":     {"echo 'cloud-hypervisor v53.0'; echo 'Migration Protocol Versions: 0'", "53.0", ""},
		"build":       {"echo cloud-hypervisor v53.0-246-gae44c2971-dirty", "53.0.246", ""},
		"patch":       {"echo cloud-hypervisor v54.1.2", "54.1.2", ""},
		"too old":     {"echo cloud-hypervisor v51.2", "", "install 53 or newer"},
		"other":       {"echo QEMU emulator version 7.2", "", "no version"},
		"placeholder": {"echo cloud-hypervisor", "", "no version"},
		"broken":      {"exit 1", "", "reinstall"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			binary := filepath.Join(dir, "ch")
			if err := os.WriteFile(binary, []byte("#!/bin/sh\n"+tt.script+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(dir, "kvm_intel"), 0o700); err != nil {
				t.Fatal(err)
			}
			d := New(Driver{Binary: binary, Host: kvm.Host{Device: os.DevNull, Modules: dir}})
			facts, err := d.Probe(t.Context())
			if tt.remedy == "" && (err != nil || facts.Version != tt.version) {
				t.Errorf("got %+v, %v", facts, err)
			}
			if tt.remedy != "" && (!errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), tt.remedy)) {
				t.Errorf("got %v, want FailedPrecondition that says %q", err, tt.remedy)
			}
		})
	}
}

func TestProbeWithoutKVM(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "ch")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\necho cloud-hypervisor v53.0\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	d := New(Driver{Binary: binary, Host: kvm.Host{Device: os.DevNull, Modules: dir}})
	if _, err := d.Probe(t.Context()); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "kvm_intel") {
		t.Errorf("got %v", err)
	}
	d.Binary = filepath.Join(dir, "none")
	if _, err := d.Probe(t.Context()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("got %v", err)
	}
}
