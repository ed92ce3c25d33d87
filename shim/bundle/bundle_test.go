package bundle

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/config"
)

// generate makes the spec that a containerd client makes by default.
func generate(t *testing.T, opts ...oci.SpecOpts) *specs.Spec {
	t.Helper()
	ctx := namespaces.WithNamespace(t.Context(), "test")
	s, err := oci.GenerateSpecWithPlatform(ctx, nil, "linux/amd64", &containers.Container{ID: "c1"},
		append([]oci.SpecOpts{oci.WithProcessArgs("sh"), oci.WithDefaultUnixDevices}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// edit changes a spec directly.
func edit(fn func(s *specs.Spec)) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		fn(s)
		return nil
	}
}

func load(t *testing.T, s *specs.Spec) (*Bundle, error) {
	t.Helper()
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(dir, "test", "c1", config.Default(), nil)
}

func bind(source, destination string, options ...string) oci.SpecOpts {
	return oci.WithMounts([]specs.Mount{{Type: "bind", Source: source, Destination: destination,
		Options: append([]string{"rbind"}, options...)}})
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func annotation(key, value string) oci.SpecOpts {
	return oci.WithAnnotations(map[string]string{key: value})
}

func TestDefaultSpec(t *testing.T) {
	b, err := load(t, generate(t))
	if err != nil {
		t.Fatal(err)
	}
	s := b.Spec
	if s.Memory != 512<<20 || s.VCPUs != 1 || s.Namespace != "test" || s.ID != "c1" || s.UID != "" ||
		s.Version != s.Schema() || s.Version != 1 {
		t.Errorf("spec = %+v", s)
	}
	if b.NetNS != "" || b.HostNetwork || b.CgroupsPath != "/test/c1" || b.WritableSize != 8<<30 {
		t.Errorf("bundle = %+v", b)
	}
	r, err := Setup(s)
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, m := range r.GetMounts() {
		targets = append(targets, m.GetType()+" "+m.GetTarget())
	}
	want := []string{"proc /proc", "tmpfs /dev", "devpts /dev/pts", "tmpfs /dev/shm", "mqueue /dev/mqueue", "sysfs /sys",
		"tmpfs /run"}
	if d := cmp.Diff(want, targets); d != "" {
		t.Errorf("mounts of the guest (-want +got):\n%s", d)
	}
	if len(r.GetMaskedPaths()) == 0 || len(r.GetReadOnlyPaths()) == 0 {
		t.Errorf("masked and read-only paths are lost: %+v", r)
	}
}

// What makes the Spec differ between nodes, or names a path of this one,
// stays in the bundle.
func TestNoHostPathInSpec(t *testing.T) {
	source := file(t, "127.0.0.1 localhost\n")
	secret := filepath.Dir(source)
	b, err := load(t, generate(t, bind(source, "/etc/hosts"), annotation("nerdctl/state-dir", secret),
		edit(func(s *specs.Spec) {
			s.Root.Path = secret + "/rootfs"
			s.Linux.CgroupsPath = secret + "/cgroup"
			s.Process.ApparmorProfile, s.Process.SelinuxLabel = "nerdctl-default", "system_u:system_r:container_t:s0"
			s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActErrno}
			s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: secret + "/hook"}}}
			for i := range s.Linux.Namespaces {
				if s.Linux.Namespaces[i].Type == specs.NetworkNamespace {
					s.Linux.Namespaces[i].Path = secret + "/netns"
				}
			}
		})))
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(b.Spec)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), secret) {
		t.Errorf("the Spec holds a path of the host: %s", data)
	}
	if b.NetNS != secret+"/netns" || b.CgroupsPath != secret+"/cgroup" || len(b.Hooks[CreateRuntime]) != 1 ||
		b.Copies[0].Source != source {
		t.Errorf("the bundle lost what only the host honours: %+v", b)
	}
	for _, word := range []string{"AppArmor", "SELinux", "device rules", "/etc/hosts"} {
		if !slices.ContainsFunc(b.Notes, func(n string) bool { return strings.Contains(n, word) }) {
			t.Errorf("no note tells of %s: %q", word, b.Notes)
		}
	}
	again := *b.Spec.Container.OCI // a wake's Create gets this spec
	if _, err := load(t, &again); err != nil {
		t.Errorf("the spec made for another node is refused: %v", err)
	}
}

func TestSize(t *testing.T) {
	limit := func(n int64) oci.SpecOpts { return oci.WithMemoryLimit(uint64(n)) }
	cpu := func(quota int64, period uint64) oci.SpecOpts { return oci.WithCPUCFS(quota, period) }
	tests := []struct {
		name   string
		opts   []oci.SpecOpts
		memory uint64
		vcpus  int
	}{
		{"config", nil, 512 << 20, 1},
		{"limit", []oci.SpecOpts{limit(128 << 20)}, 256 << 20, 1},
		{"limit rounded up", []oci.SpecOpts{limit(100<<20 + 1)}, 230 << 20, 1},
		{"annotation over limit", []oci.SpecOpts{limit(128 << 20), annotation(Prefix+"memory", "1GiB")}, 1 << 30, 1},
		{"annotation rounded up", []oci.SpecOpts{annotation(Prefix+"memory", "134217729")}, 130 << 20, 1},
		{"quota", []oci.SpecOpts{cpu(150_000, 100_000)}, 512 << 20, 2},
		{"whole quota", []oci.SpecOpts{cpu(200_000, 100_000)}, 512 << 20, 2},
		{"unlimited quota", []oci.SpecOpts{cpu(-1, 100_000)}, 512 << 20, 1},
		{"annotation over quota", []oci.SpecOpts{cpu(150_000, 100_000), annotation(Prefix+"vcpus", "4")}, 512 << 20, 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, err := load(t, generate(t, tt.opts...))
			if err != nil {
				t.Fatal(err)
			}
			if b.Spec.Memory != tt.memory || b.Spec.VCPUs != tt.vcpus {
				t.Errorf("%d bytes and %d vCPUs, want %d and %d", b.Spec.Memory, b.Spec.VCPUs, tt.memory, tt.vcpus)
			}
		})
	}
}

func TestAnnotationsAreHonoured(t *testing.T) {
	own := map[string]string{Prefix + "vmm": "qemu", Prefix + "image": "sha256:1", Prefix + "writable-size": "1GiB",
		Prefix + "os": "linux"}
	b, err := load(t, generate(t, oci.WithAnnotations(own), annotation("other/key", "x")))
	if err != nil {
		t.Fatal(err)
	}
	if b.VMM != "qemu" || b.Spec.Container.Image != "sha256:1" || b.WritableSize != 1<<30 {
		t.Errorf("bundle = %+v", b)
	}
	if d := cmp.Diff(own, b.Spec.Annotations); d != "" {
		t.Errorf("annotations (-want +got):\n%s", d)
	}
}

// What a VM cannot have is refused by name when it is made. So is what a VMM could not save with
// it: devices of the host, shared file systems.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	tests := []struct {
		name string
		opt  oci.SpecOpts
		is   func(error) bool
		want string
	}{
		{"unknown annotation", annotation(Prefix+"memroy", "1GiB"), errdefs.IsInvalidArgument,
			"known are godwit.dev/cmdline"},
		{"memory text", annotation(Prefix+"memory", "lots"), errdefs.IsInvalidArgument, "godwit.dev/memory"},
		{"memory small", annotation(Prefix+"memory", "1MiB"), errdefs.IsInvalidArgument, "64MiB"},
		{"vcpus", annotation(Prefix+"vcpus", "0"), errdefs.IsInvalidArgument, "godwit.dev/vcpus"},
		{"vmm", annotation(Prefix+"vmm", "xen"), errdefs.IsInvalidArgument, "godwit.dev/vmm"},
		{"volumes", annotation(Prefix+"volumes", "share"), errdefs.IsInvalidArgument, "godwit.dev/volumes"},
		{"restore", annotation(Prefix+"restore", "later"), errdefs.IsInvalidArgument,
			"godwit.dev/restore: \"later\" is not one of eager, lazy, auto"},
		{"ready", annotation(Prefix+"ready", " "), errdefs.IsInvalidArgument, "godwit.dev/ready: it is no command"},
		{"notify", annotation(Prefix+"notify", `["sh"`), errdefs.IsInvalidArgument, "godwit.dev/notify"},
		{"ready timeout", oci.WithAnnotations(map[string]string{Prefix + "ready": "/r", Prefix + "ready-timeout": "soon"}),
			errdefs.IsInvalidArgument, "godwit.dev/ready-timeout"},
		{"ready timeout alone", annotation(Prefix+"ready-timeout", "30s"), errdefs.IsInvalidArgument,
			"without godwit.dev/ready"},
		{"nic", annotation(Prefix+"nic", "keep"), errdefs.IsInvalidArgument, "godwit.dev/nic"},
		{"os", annotation(Prefix+"os", "solaris"), errdefs.IsInvalidArgument,
			"godwit.dev/os: \"solaris\" is not one of linux, windows"},
		{"name of a pod's VM", annotation(Prefix+"vm", "web"), errdefs.IsInvalidArgument, "godwit.dev/vm"},
		{"pod without a type", annotation("io.kubernetes.cri.sandbox-id", "s1"), errdefs.IsInvalidArgument,
			"io.kubernetes.cri.sandbox-id"},
		{"no command", edit(func(s *specs.Spec) {
			s.Process.Args = nil
			s.Annotations = map[string]string{Prefix + "image": "alpine"}
		}), errdefs.IsInvalidArgument, "image alpine"},
		{"no process", edit(func(s *specs.Spec) { s.Process = nil }), errdefs.IsInvalidArgument, "process.args"},
		{"relative cwd", edit(func(s *specs.Spec) { s.Process.Cwd = "x" }), errdefs.IsInvalidArgument, "process.cwd"},
		{"writable directory", bind(dir, "/data"), errdefs.IsNotImplemented, "volumes=copy"},
		{"missing source", bind(dir+"/none", "/data", "ro"), errdefs.IsNotFound, "/data"},
		{"host's proc", bind("/proc/self", "/data", "ro"), errdefs.IsNotImplemented, "/data"},
		{"device", bind("/dev/null", "/data", "ro"), errdefs.IsNotImplemented, "/data"},
		{"relative destination", bind(dir, "data", "ro"), errdefs.IsInvalidArgument, `"data"`},
		{"nfs", oci.WithMounts([]specs.Mount{{Type: "nfs", Source: "h:/e", Destination: "/data"}}), errdefs.IsNotImplemented,
			`"nfs"`},
		{"tmpcopyup", oci.WithMounts([]specs.Mount{{Type: "tmpfs", Source: "tmpfs", Destination: "/data",
			Options: []string{"tmpcopyup"}}}), errdefs.IsNotImplemented, "tmpcopyup"},
		{"container hook", edit(func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{StartContainer: []specs.Hook{{Path: "/h"}}}
		}), errdefs.IsNotImplemented, "hooks.startContainer"},
		{"relative hook", edit(func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "h"}}}
		}), errdefs.IsInvalidArgument, "hooks.poststop[0].path"},
		{"host pid", oci.WithHostNamespace(specs.PIDNamespace), errdefs.IsNotImplemented, "--pid=host"},
		{"host ipc", oci.WithHostNamespace(specs.IPCNamespace), errdefs.IsNotImplemented, "--ipc=host"},
		{"host uts", oci.WithHostNamespace(specs.UTSNamespace), errdefs.IsNotImplemented, "--uts=host"},
		{"swappiness", edit(func(s *specs.Spec) {
			s.Linux.Resources.Memory = &specs.LinuxMemory{Swappiness: new(uint64)}
		}), errdefs.IsNotImplemented, "memory.swappiness"},
		{"no OOM killer", edit(func(s *specs.Spec) {
			yes := true
			s.Linux.Resources.Memory = &specs.LinuxMemory{DisableOOMKiller: &yes}
		}), errdefs.IsNotImplemented, "memory.disableOOMKiller"},
		{"I/O weight", edit(func(s *specs.Spec) {
			weight := uint16(100)
			s.Linux.Resources.BlockIO = &specs.LinuxBlockIO{Weight: &weight}
		}), errdefs.IsNotImplemented, "blockIO.weight"},
		{"join pid", oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.PIDNamespace, Path: "/proc/1/ns/pid"}),
			errdefs.IsNotImplemented, "linux.namespaces pid"},
		{"user namespace of another", oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.UserNamespace,
			Path: "/proc/1/ns/user"}), errdefs.IsInvalidArgument, "linux.uidMappings"},
		{"host device", edit(func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/kvm", Type: "c"}}
		}), errdefs.IsNotImplemented, "/dev/kvm"},
		{"VFIO", edit(func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/vfio/12", Type: "c"}}
		}), errdefs.IsNotImplemented, "/dev/vfio/12"},
		{"vDPA", edit(func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/vhost-vdpa-0", Type: "c"}}
		}), errdefs.IsNotImplemented, "/dev/vhost-vdpa-0"},
		{"virtio-fs", oci.WithMounts([]specs.Mount{{Type: "virtiofs", Source: "tag", Destination: "/data"}}),
			errdefs.IsNotImplemented, `"virtiofs"`},
		{"vhost-user", oci.WithMounts([]specs.Mount{{Type: "vhost-user-fs", Source: "/run/fs.sock", Destination: "/data"}}),
			errdefs.IsNotImplemented, `"vhost-user-fs"`},
		{"rdt", edit(func(s *specs.Spec) {
			s.Linux.IntelRdt = &specs.LinuxIntelRdt{}
		}), errdefs.IsNotImplemented, "intelRdt"},
		{"huge pages", edit(func(s *specs.Spec) {
			s.Linux.Resources.HugepageLimits = []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 1}}
		}), errdefs.IsNotImplemented, "hugepageLimits 2MB"},
		{"huge limit", oci.WithMemoryLimit(1 << 62), errdefs.IsInvalidArgument, "memory.limit"},
		{"windows", edit(func(s *specs.Spec) { s.Windows = &specs.Windows{} }), errdefs.IsNotImplemented, "windows"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := load(t, generate(t, tt.opt))
			if !tt.is(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Load = %v, want its class and %q", err, tt.want)
			}
		})
	}
}

func TestHostNetwork(t *testing.T) {
	b, err := load(t, generate(t, oci.WithHostNamespace(specs.NetworkNamespace)))
	if err != nil || !b.HostNetwork {
		t.Errorf("a spec without network namespace: %+v, %v", b, err)
	}
	b, err = load(t, generate(t, edit(func(s *specs.Spec) {
		s.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	})))
	if err != nil || b.HostNetwork {
		t.Errorf("a spec that isolates nothing but mounts: %+v, %v", b, err)
	}
}

func TestStandardDevicesAreAccepted(t *testing.T) {
	_, err := load(t, generate(t, edit(func(s *specs.Spec) {
		s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/null", Type: "c", Major: 1, Minor: 3}}
	})))
	if err != nil {
		t.Error(err)
	}
}

func TestDocumentationNamesEveryAnnotation(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/annotations.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `("+Prefix+"[a-z-]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, m[1])
	}
	slices.Sort(documented)
	if d := cmp.Diff(Known(), documented); d != "" {
		t.Errorf("annotations of the code and of docs/reference/annotations.md (-code +page):\n%s", d)
	}
}
