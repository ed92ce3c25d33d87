package bundle

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/spec"
)

// loadDisk is load for an image that carries a disk, or does not.
func loadDisk(t *testing.T, carries bool, s *specs.Spec) (*Bundle, error) {
	t.Helper()
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(dir, "test", "c1", config.Default(), func() (bool, error) { return carries, nil })
}

func noProcess(s *specs.Spec) { s.Process.Args = nil }

// TestVMDisk: what is booted, from annotations and from what the image holds.
func TestVMDisk(t *testing.T) {
	for name, tt := range map[string]struct {
		carries     bool
		annotations map[string]string
		want        *VMDisk
	}{
		"container":            {false, nil, nil},
		"linux in a container": {false, map[string]string{"os": "linux"}, nil},
		"convention":           {true, nil, &VMDisk{OS: "linux", Boot: spec.BootUEFI}},
		"named": {false, map[string]string{"disk": "/a/b.raw"}, &VMDisk{Path: "/a/b.raw", OS: "linux",
			Boot: spec.BootUEFI}},
		"windows": {false, map[string]string{"os": "windows"}, &VMDisk{OS: "windows", Boot: spec.BootUEFI}},
		"bios": {true, map[string]string{"firmware": "bios", "disk-size": "10GiB"},
			&VMDisk{OS: "linux", Boot: spec.BootBIOS, Size: 10 << 30}},
		"kernel": {true, map[string]string{"kernel": "/boot/vmlinuz", "initrd": "/boot/initrd", "cmdline": "root=/dev/vda"},
			&VMDisk{OS: "linux", Boot: spec.BootKernel, Kernel: "/boot/vmlinuz", Initrd: "/boot/initrd",
				Cmdline: "root=/dev/vda"}},
	} {
		t.Run(name, func(t *testing.T) {
			all := map[string]string{}
			for key, value := range tt.annotations {
				all[Prefix+key] = value
			}
			b, err := loadDisk(t, tt.carries, generate(t, oci.WithAnnotations(all)))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, b.VMDisk); diff != "" {
				t.Errorf("VM disk (-want +got):\n%s", diff)
			}
			if b.Spec.HasAgent() != (tt.want == nil) || b.Spec.Windows() != (tt.want != nil && tt.want.OS == "windows") {
				t.Errorf("Spec: %+v", b.Spec.VMDisk)
			}
		})
	}
}

// TestVMDiskNeedsNoProcess: what every client sends along is ignored, and said; the size
// is that of the annotations, or exactly the limit.
func TestVMDiskNeedsNoProcess(t *testing.T) {
	b, err := loadDisk(t, true, generate(t, edit(noProcess), oci.WithMemoryLimit(1<<30), oci.WithCPUCFS(150_000, 100_000),
		bind(file(t, "nameserver 10.0.0.1\n"), "/etc/resolv.conf", "ro")))
	if err != nil {
		t.Fatal(err)
	}
	if b.Spec.Memory != 1<<30 || b.Spec.VCPUs != 2 || len(b.Copies) != 1 || len(b.Notes) != 1 { // device rules
		t.Errorf("memory %d, vCPUs %d, copies %v, notes %q", b.Spec.Memory, b.Spec.VCPUs, b.Copies, b.Notes)
	}
	b, err = loadDisk(t, true, generate(t, annotation(Prefix+"memory", "256MiB"), edit(func(s *specs.Spec) {
		s.Process.Args = []string{"sleep", "1"}
		s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: "SCMP_ACT_NOTHING_KNOWN"}
	})))
	if err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(b.Notes, "\n"); b.Spec.Memory != 256<<20 ||
		!strings.Contains(notes, `"sleep 1" is not run`) || !strings.Contains(notes, "seccomp") {
		t.Errorf("memory %d, notes %q", b.Spec.Memory, b.Notes)
	}
	if err := b.Spec.Check(); err != nil {
		t.Error(err)
	}
}

func TestVMDiskRefusals(t *testing.T) {
	set := func(pairs ...string) oci.SpecOpts {
		all := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			all[Prefix+pairs[i]] = pairs[i+1]
		}
		return oci.WithAnnotations(all)
	}
	for _, tt := range []struct {
		name string
		opt  oci.SpecOpts
		is   func(error) bool
		want string
	}{
		{"relative disk", set("disk", "disk/x.raw"), errdefs.IsInvalidArgument, "godwit.dev/disk"},
		{"disk outside", set("disk", "/disk/../../x"), errdefs.IsInvalidArgument, "godwit.dev/disk"},
		{"no size", set("disk-size", "0"), errdefs.IsInvalidArgument, "godwit.dev/disk-size"},
		{"absurd size", set("disk-size", "1000TiB"), errdefs.IsInvalidArgument, "godwit.dev/disk-size"},
		{"firmware", set("firmware", "coreboot"), errdefs.IsInvalidArgument, "godwit.dev/firmware"},
		{"lines", set("kernel", "/k", "cmdline", "a\nb"), errdefs.IsInvalidArgument, "godwit.dev/cmdline"},
		{"initrd alone", set("initrd", "/i"), errdefs.IsInvalidArgument, "godwit.dev/kernel"},
		{"cmdline alone", set("cmdline", "quiet"), errdefs.IsInvalidArgument, "godwit.dev/kernel"},
		{"two ways to boot", set("kernel", "/k", "firmware", "uefi"), errdefs.IsInvalidArgument, "godwit.dev/firmware"},
		{"windows by kernel", set("os", "windows", "kernel", "/k"), errdefs.IsInvalidArgument, "godwit.dev/os"},
		{"windows by BIOS", set("os", "windows", "firmware", "bios"), errdefs.IsInvalidArgument, "godwit.dev/os"},
		{"writable size", set("writable-size", "1GiB"), errdefs.IsInvalidArgument, "disk-size"},
		{"volumes", set("volumes", "copy"), errdefs.IsInvalidArgument, "godwit.dev/volumes"},
		{"ready", set("ready", "/r"), errdefs.IsNotImplemented, "godwit.dev/ready"},
		{"notify", set("notify", "/n"), errdefs.IsNotImplemented, "godwit.dev/notify"},
		{"bind mount", bind("/", "/data", "ro"), errdefs.IsNotImplemented, "mount /data"},
		{"tmpfs", oci.WithMounts([]specs.Mount{{Type: "tmpfs", Source: "tmpfs", Destination: "/cache"}}),
			errdefs.IsNotImplemented, "mount /cache"},
		{"read-only", edit(func(s *specs.Spec) {
			s.Root = &specs.Root{Readonly: true}
		}), errdefs.IsNotImplemented, "root.readonly"},
		{"sysctl", edit(func(s *specs.Spec) {
			s.Linux.Sysctl = map[string]string{"a": "b"}
		}), errdefs.IsNotImplemented, "linux.sysctl"},
		{"host device", edit(func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/kvm", Type: "c"}}
		}), errdefs.IsNotImplemented, "/dev/kvm"},
		{"host pid", oci.WithHostNamespace(specs.PIDNamespace), errdefs.IsNotImplemented, "--pid=host"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := loadDisk(t, true, generate(t, tt.opt))
			if err == nil || !tt.is(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Load = %v, want its class and %q", err, tt.want)
			}
		})
	}
}
