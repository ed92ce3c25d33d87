package bundle

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/spec"
)

const podUID = "11d7d77f-5b9b-4a5e-8f3e-0a3c6a5f1d2e"

// ofPod adds what CRI says of a pod.
func ofPod(kind string, more map[string]string) oci.SpecOpts {
	all := map[string]string{criType: kind, criSandbox: "s1", criNamespace: "shop", criSandboxName: "web-0",
		criUID: podUID}
	maps.Copy(all, more)
	return oci.WithAnnotations(all)
}

// sandbox is the spec that CRI makes for a pod.
func sandbox(t *testing.T, opts ...oci.SpecOpts) *specs.Spec {
	t.Helper()
	shares := uint64(2)
	return generate(t, append([]oci.SpecOpts{ofPod(roleSandbox, nil), oci.WithoutRunMount, oci.WithHostname("web-0"),
		oci.WithProcessArgs("/pause"), edit(func(s *specs.Spec) {
			s.Linux.Resources.CPU = &specs.LinuxCPU{Shares: &shares}
			s.Linux.Sysctl = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
			s.Linux.CgroupsPath = "/kubepods/pod1/s1"
		}), oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: "/run/netns/cni-1"}),
		bind("/nowhere/shm", "/dev/shm", "ro"), bind("/nowhere/resolv.conf", "/etc/resolv.conf", "ro")}, opts...)...)
}

// member is the spec that CRI makes for a container of that pod.
func member(t *testing.T, opts ...oci.SpecOpts) *specs.Spec {
	t.Helper()
	var namespaces []oci.SpecOpts
	for kind, name := range inProcess {
		if kind != specs.PIDNamespace {
			namespaces = append(namespaces, oci.WithLinuxNamespace(specs.LinuxNamespace{Type: kind,
				Path: "/proc/4711/ns/" + name}))
		}
	}
	named := ofPod(roleContainer, map[string]string{criContainerName: "web", criImage: "localhost/web:1"})
	return generate(t, slices.Concat([]oci.SpecOpts{named, oci.WithoutRunMount}, namespaces, opts)...)
}

func TestSandbox(t *testing.T) {
	b, err := load(t, sandbox(t, oci.WithAnnotations(map[string]string{Prefix + "vm": "web", Prefix + "ready": "/ready",
		Prefix + "vmm": "qemu", "other/key": "x"}), edit(func(s *specs.Spec) { s.Process = nil })))
	if err != nil {
		t.Fatal(err)
	}
	want := &spec.Spec{Version: spec.Version, Namespace: "test", ID: "shop.web", Memory: 512 << 20, VCPUs: 1,
		Annotations: map[string]string{Prefix + "vm": "web", Prefix + "vmm": "qemu"},
		Pod: &spec.Pod{Namespace: "shop", Name: "web-0", UID: podUID, Hostname: "web-0",
			Sysctl: map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}}}
	if d := cmp.Diff(want, b.Spec); d != "" {
		t.Errorf("Spec of a pod (-want +got):\n%s", d)
	}
	if b.Member != nil || b.NetNS != "/run/netns/cni-1" || b.CgroupsPath != "/kubepods/pod1/s1" ||
		b.WritableSize != 8<<30 || b.VMM != "qemu" || len(b.Copies) != 0 || b.Program().Name != "" {
		t.Errorf("bundle = %+v", b)
	}
	b, err = load(t, sandbox(t, edit(func(s *specs.Spec) { s.Hostname = "" })))
	if name, herr := os.Hostname(); err != nil || herr != nil || b.Spec.Pod.Hostname != name {
		t.Errorf("a pod without a name of its own is called %+v, %v", b, err)
	}
}

// A kubelet tells the sums of limits; an annotation of godwit counts more.
func TestSandboxSize(t *testing.T) {
	for name, tt := range map[string]struct {
		annotations map[string]string
		memory      uint64
		vcpus       int
	}{
		"none":               {nil, 512 << 20, 1},
		"kubelet, no limits": {map[string]string{criMemory: "0", criQuota: "0", criPeriod: "100000"}, 512 << 20, 1},
		"kubelet": {map[string]string{criMemory: "268435456", criQuota: "150000", criPeriod: "100000"}, 384 << 20,
			2},
		"unlimited CPU": {map[string]string{criMemory: "1", criQuota: "-1", criPeriod: "100000"}, 130 << 20, 1},
		"annotations": {map[string]string{criMemory: "268435456", criQuota: "150000", criPeriod: "100000",
			Prefix + "memory": "1GiB", Prefix + "vcpus": "4"}, 1 << 30, 4},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := load(t, sandbox(t, oci.WithAnnotations(tt.annotations)))
			if err != nil {
				t.Fatal(err)
			}
			if b.Spec.Memory != tt.memory || b.Spec.VCPUs != tt.vcpus {
				t.Errorf("%d bytes and %d vCPUs, want %d and %d", b.Spec.Memory, b.Spec.VCPUs, tt.memory, tt.vcpus)
			}
		})
	}
}

func TestMember(t *testing.T) {
	hosts := file(t, "127.0.0.1 localhost\n")
	b, err := load(t, member(t, bind(hosts, "/etc/hosts", "rprivate", "rw"), oci.WithAnnotations(map[string]string{
		Prefix + "memory": "1GiB", Prefix + "ready": "/ready"}), edit(func(s *specs.Spec) {
		s.Linux.CgroupsPath = "/kubepods/pod1/c1"
		s.Mounts = append(s.Mounts, specs.Mount{Type: "cgroup", Source: "cgroup", Destination: "/sys/fs/cgroup",
			Options: []string{"ro", "nsdelegate", "memory_recursiveprot"}})
	})))
	if err != nil {
		t.Fatal(err)
	}
	m := b.Member
	if b.Spec != nil || m == nil || m.Sandbox != "s1" || m.Holder != 4711 || m.PIDPath != "" ||
		m.Container.Name != "web" || m.Container.Image != "localhost/web:1" ||
		m.Container.Guest != "" || len(m.Volumes) != 0 {
		t.Fatalf("member = %+v", m)
	}
	if len(b.Copies) != 1 || b.Copies[0].Destination != "/etc/hosts" || len(b.Notes) != 1 {
		t.Errorf("copies %+v, notes %q", b.Copies, b.Notes)
	}
	if got := b.Program(); got.Name != "sh" || !slices.Contains(got.Covered, "/etc/hosts") {
		t.Errorf("program = %+v", got)
	}
	o := m.Container.OCI
	for _, ns := range o.Linux.Namespaces {
		if ns.Path != "" {
			t.Errorf("a path of the host is left: %+v", ns)
		}
	}
	want := map[string]string{Prefix + "memory": "1GiB", Prefix + "ready": "/ready"}
	if d := cmp.Diff(want, o.Annotations); d != "" || o.Linux.CgroupsPath != "" {
		t.Errorf("annotations (-want +got):\n%s\ncgroup %q", d, o.Linux.CgroupsPath)
	}
	vm := &spec.Spec{ID: "s1", Disks: []spec.Disk{{ID: "image0", Serial: "image0", Type: "erofs"}},
		Annotations: map[string]string{Prefix + "memory": "1GiB"}, Pod: &spec.Pod{}}
	if err := b.BelongsTo(vm, vm.ID); err != nil {
		t.Errorf("the container is none of its pod: %v", err)
	}
	m.Container.Layers = []string{"image0"}
	r, err := MemberSetup(vm, &m.Container)
	if err != nil || len(r.GetLayers()) != 1 || r.GetWritable() != nil {
		t.Errorf("MemberSetup = %+v, %v", r, err)
	}
	vm.ID = "s2"
	if err := b.BelongsTo(vm, vm.ID); !errdefs.IsInvalidArgument(err) {
		t.Errorf("another sandbox takes the container: %v", err)
	}
	vm.ID, vm.Annotations = "s1", nil
	err = b.BelongsTo(vm, vm.ID)
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "godwit.dev/memory") {
		t.Errorf("a container sets the memory of its pod: %v", err)
	}
}

// TestMemberPID: a container may have the pod's pid namespace, or that of another one.
func TestMemberPID(t *testing.T) {
	b, err := load(t, member(t, oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.PIDNamespace,
		Path: "/proc/4712/ns/pid"})))
	if err != nil {
		t.Fatal(err)
	}
	if m := b.Member; m.PIDPath != "/proc/4712/ns/pid" || m.PIDHolder != 4712 || m.Holder != 4711 {
		t.Errorf("member = %+v", m)
	}
}

// TestPrivileged: root of a VM of its own, without the devices of the host.
func TestPrivileged(t *testing.T) {
	b, err := load(t, member(t, oci.WithPrivileged, oci.WithAllDevicesAllowed))
	if err != nil {
		t.Fatal(err)
	}
	o := b.Member.Container.OCI
	if len(o.Process.Capabilities.Bounding) < 38 || len(o.Linux.MaskedPaths) != 0 || o.Linux.Seccomp != nil {
		t.Errorf("privileged: %+v", o.Linux)
	}
	i := slices.IndexFunc(o.Mounts, func(m specs.Mount) bool { return m.Destination == "/sys" })
	if i < 0 || slices.Contains(o.Mounts[i].Options, "ro") {
		t.Errorf("/sys is read-only: %+v", o.Mounts)
	}
}

// namespace sets or, without a path, removes the entry of that kind.
func namespace(kind specs.LinuxNamespaceType, path string) oci.SpecOpts {
	if path == "" {
		return edit(func(s *specs.Spec) {
			s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
				return n.Type == kind
			})
		})
	}
	return oci.WithLinuxNamespace(specs.LinuxNamespace{Type: kind, Path: path})
}

// What a pod asks for and cannot have is refused by name, before a VM is touched.
func TestPodRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		spec *specs.Spec
		is   func(error) bool
		want string
	}{
		"type": {sandbox(t, annotation(criType, "vm")),
			errdefs.IsInvalidArgument, "sandbox, container"},
		"no name": {sandbox(t, annotation(criSandboxName, "")),
			errdefs.IsInvalidArgument, criSandboxName},
		"no container": {member(t, annotation(criContainerName, "")),
			errdefs.IsInvalidArgument, criContainerName},
		"hostNetwork": {sandbox(t, namespace(specs.NetworkNamespace, "")),
			errdefs.IsNotImplemented, "hostNetwork"},
		"hostPID": {sandbox(t, namespace(specs.PIDNamespace, "")),
			errdefs.IsNotImplemented, "hostPID"},
		"hostIPC": {sandbox(t, namespace(specs.IPCNamespace, "")),
			errdefs.IsNotImplemented, "hostIPC"},
		"no groups": {sandbox(t, oci.WithUserNamespace([]specs.LinuxIDMapping{{Size: 1}}, nil)),
			errdefs.IsInvalidArgument, "linux.gidMappings"},
		"own ipc": {member(t, namespace(specs.IPCNamespace, "/run/ipc")),
			errdefs.IsNotImplemented, "/run/ipc"},
		"host's ipc": {member(t, namespace(specs.IPCNamespace, "")),
			errdefs.IsNotImplemented, "hostIPC"},
		"two pods": {member(t, namespace(specs.UTSNamespace, "/proc/1/ns/uts")),
			errdefs.IsNotImplemented, "one pod"},
		"wrong kind": {member(t, namespace(specs.UTSNamespace, "/proc/4711/ns/ipc")),
			errdefs.IsNotImplemented, "uts"},
		"pid of a path": {member(t, namespace(specs.PIDNamespace, "/run/pid")),
			errdefs.IsNotImplemented, "/run/pid"},
		"no mappings": {member(t, namespace(specs.UserNamespace, "/proc/4711/ns/user")),
			errdefs.IsInvalidArgument, "linux.uidMappings"},
		"another's user namespace": {member(t, withUsers("/proc/1/ns/user")), errdefs.IsNotImplemented, "one pod"},
		"user namespace of a path": {member(t, withUsers("/run/user")), errdefs.IsNotImplemented, "linux.namespaces user"},
		"mount namespace": {member(t, namespace(specs.MountNamespace, "/proc/4711/ns/mnt")),
			errdefs.IsNotImplemented, "mnt"},
		"time namespace": {member(t, namespace(specs.TimeNamespace, "/proc/4711/ns/time")),
			errdefs.IsNotImplemented, "time"},
		"CDI": {member(t, annotation("cdi.k8s.io/gpu", "vendor/gpu=0")),
			errdefs.IsNotImplemented, "cdi.k8s.io/gpu"},
		"VM disk": {sandbox(t, annotation(Prefix+"os", "windows")),
			errdefs.IsNotImplemented, "godwit.dev/disk"},
		"no name of a VM": {sandbox(t, annotation(Prefix+"vm", "a/b")),
			errdefs.IsInvalidArgument, "godwit.dev/vm"},
		"unknown": {sandbox(t, annotation(Prefix+"memroy", "1")),
			errdefs.IsInvalidArgument, "godwit.dev/memroy"},
		"sum of memory": {sandbox(t, annotation(criMemory, "much")),
			errdefs.IsInvalidArgument, criMemory},
		"too much memory": {sandbox(t, annotation(criMemory, fmt.Sprint(int64(1)<<62))),
			errdefs.IsInvalidArgument, criMemory},
		"too much CPU": {sandbox(t, annotation(criQuota, "100000000")),
			errdefs.IsInvalidArgument, criQuota},
		"container's hook": {member(t, edit(func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{}}}
		})),
			errdefs.IsNotImplemented, "createContainer"},
		"no command": {member(t, edit(func(s *specs.Spec) { s.Process.Args = nil })),
			errdefs.IsInvalidArgument, "localhost/web:1"},
		"device": {member(t, edit(func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/kvm", Type: "c"}}
		})), errdefs.IsNotImplemented, "privileged_without_host_devices"},
		"huge pages": {member(t, edit(func(s *specs.Spec) {
			s.Linux.Resources.HugepageLimits = []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 1}}
		})), errdefs.IsNotImplemented, "hugepageLimits 2MB"},
		"missing source": {member(t, bind("/nowhere/x", "/x", "ro")), errdefs.IsNotFound, "/x"},
		"directory": {member(t, bind(t.TempDir(), "/x", "rw")),
			errdefs.IsNotImplemented, "volumes=copy"},
		"bidirectional": {member(t, bind(t.TempDir(), "/x", "ro", "rshared")),
			errdefs.IsNotImplemented, "Bidirectional"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := load(t, tt.spec); !tt.is(err) || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("Load = %v, want its class and %q", err, tt.want)
			}
		})
	}
}
