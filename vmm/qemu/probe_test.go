package qemu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm/kvm"
)

func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestProbeVersion(t *testing.T) {
	none := func(err error) bool { return err == nil }
	tests := []struct {
		name, text, version string
		class               func(error) bool
		remedy              string
	}{
		{"debian 12", `echo "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)"`, "7.2.22", none, ""},
		{"newer", `echo "QEMU emulator version 10.0.2"`, "10.0.2", none, ""},
		{"oldest", `echo "QEMU emulator version 7.2"`, "7.2", none, ""},
		{"too old", `echo "QEMU emulator version 7.1.0"`, "", errdefs.IsFailedPrecondition, "7.2 or newer"},
		{"far too old", `echo "QEMU emulator version 6.9.0"`, "", errdefs.IsFailedPrecondition, "7.2 or newer"},
		{"another program", `echo "busybox"`, "", errdefs.IsFailedPrecondition, "vmm.qemu"},
		{"number too large", `echo "QEMU emulator version 99999999999999999999.1"`, "", errdefs.IsFailedPrecondition,
			"out of range"},
		{"fails", `exit 1`, "", errdefs.IsFailedPrecondition, "reinstall"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := New(Driver{Binary: script(t, tt.text), Accel: "tcg"})
			if err != nil {
				t.Fatal(err)
			}
			facts, err := d.Probe(t.Context())
			if facts.Version != tt.version || !tt.class(err) || err != nil && !strings.Contains(err.Error(), tt.remedy) {
				t.Errorf("got %+v, %v", facts, err)
			}
		})
	}
}

func TestProbeWithoutBinary(t *testing.T) {
	d, err := New(Driver{Binary: "/no/such/qemu"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Probe(t.Context()); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "install") {
		t.Errorf("got %v", err)
	}
}

// TestProbeKVM: /dev/kvm alone is not KVM.
func TestProbeKVM(t *testing.T) {
	tests := []struct {
		name, accel string
		device      bool
		module      string
		want, cpu   string
		fails       bool
	}{
		{"intel", "", true, "kvm_intel", "kvm", "host", false},
		{"amd", "auto", true, "kvm_amd", "kvm", "host", false},
		{"another kvm", "auto", true, "kvm_pvm", "tcg", "max", false},
		{"no device", "auto", false, "kvm_intel", "tcg", "max", false},
		{"tcg wanted", "tcg", true, "kvm_intel", "tcg", "max", false},
		{"kvm wanted", "kvm", true, "kvm_pvm", "", "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, tt.module), 0o700); err != nil {
				t.Fatal(err)
			}
			h := kvm.Host{Device: filepath.Join(dir, "kvm"), Modules: dir}
			if tt.device {
				if err := os.WriteFile(h.Device, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			d, err := New(Driver{Binary: script(t, `echo "QEMU emulator version 7.2.0"`), Accel: tt.accel, host: h})
			if err != nil {
				t.Fatal(err)
			}
			facts, err := d.Probe(t.Context())
			if tt.fails != errdefs.IsFailedPrecondition(err) || facts.Accel != tt.want || facts.CPU != tt.cpu {
				t.Errorf("got %+v, %v", facts, err)
			}
			if !tt.fails && (facts.Reason == "" || facts.Machine != DefaultMachine) {
				t.Errorf("got %+v", facts)
			}
		})
	}
}

func TestNewRefusesAccel(t *testing.T) {
	if _, err := New(Driver{Accel: "xen"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("got %v, want InvalidArgument", err)
	}
}
