package bundle

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/config"
	criv1 "godwit.dev/godwit/api/cri/v1"
	"godwit.dev/godwit/api/spec"
)

// A bundle that is filled from a pod's configuration reads as the one that CRI makes for a pause container does.
func TestWriteSandbox(t *testing.T) {
	dir := t.TempDir()
	c := &criv1.PodSandboxConfig{
		Metadata: &criv1.PodSandboxMetadata{Name: "web-0", Namespace: "shop", Uid: podUID}, Hostname: "web-0",
		Annotations: map[string]string{Prefix + "vm": "web", "io.kubernetes.cri.sandbox-id": "other", "other/key": "x"},
		DnsConfig: &criv1.DNSConfig{Servers: []string{"10.0.0.1", "10.0.0.2"}, Searches: []string{"a", "b"},
			Options: []string{"ndots:5"}},
		Linux: &criv1.LinuxPodSandboxConfig{CgroupParent: "/kubepods/pod1",
			Sysctls:   map[string]string{"net.ipv4.ip_unprivileged_port_start": "1024"},
			Resources: &criv1.LinuxContainerResources{MemoryLimitInBytes: 256 << 20, CpuQuota: 150000, CpuPeriod: 100000}},
	}
	if err := WriteSandbox(dir, "s1", "/run/netns/cni-1", c); err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	b, err := Load(dir, "test", "s1", cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := &spec.Spec{Version: spec.Version, Namespace: "test", ID: "shop.web", Memory: 384 << 20, VCPUs: 2,
		Annotations: map[string]string{Prefix + "vm": "web"},
		Pod: &spec.Pod{Namespace: "shop", Name: "web-0", UID: podUID, Hostname: "web-0", Sysctl: map[string]string{
			"net.ipv4.ip_unprivileged_port_start": "1024", "net.ipv4.ping_group_range": "0 2147483647"}}}
	if d := cmp.Diff(want, b.Spec); d != "" {
		t.Errorf("Spec of a pod (-want +got):\n%s", d)
	}
	if b.NetNS != "/run/netns/cni-1" || b.CgroupsPath != "/kubepods/pod1/s1" {
		t.Errorf("bundle = %+v", b)
	}
	if name, err := VMName(dir, "s1"); name != "shop.web" || err != nil {
		t.Errorf("the VM is called %s, %v", name, err)
	}
	resolv, err := os.ReadFile(filepath.Join(dir, "resolv.conf"))
	const lines = "search a b\nnameserver 10.0.0.1\nnameserver 10.0.0.2\noptions ndots:5\n"
	if string(resolv) != lines || err != nil {
		t.Errorf("resolv.conf is %q, %v", resolv, err)
	}
	for parent, want := range map[string]string{"/a.slice/b.slice": "b.slice:cri-containerd:s1", "/pods": "/pods/s1"} {
		if got := cgroupOf(parent, "s1"); got != want {
			t.Errorf("below %s the cgroup is %s, want %s", parent, got, want)
		}
	}
}

// A container has the files of its pod, but for those that it mounts itself. Those of a pause container's bundle are
// mounted by CRI.
func TestMountSandboxFiles(t *testing.T) {
	dir := t.TempDir()
	hosts := specs.Mount{Destination: "/etc/hosts", Type: "bind", Source: "/var/lib/kubelet/hosts"}
	shm := specs.Mount{Destination: "/dev/shm/", Type: "tmpfs", Source: "shm"}
	oci := &specs.Spec{Root: &specs.Root{Readonly: true}, Mounts: []specs.Mount{hosts, shm}}
	if err := mountSandboxFiles(oci, dir); err != nil || len(oci.Mounts) != 2 {
		t.Errorf("of a pause container mounts are %+v, %v", oci.Mounts, err)
	}
	if err := writeSandboxFiles(dir, new(criv1.PodSandboxConfig)); err != nil {
		t.Fatal(err)
	}
	if err := mountSandboxFiles(oci, dir); err != nil {
		t.Fatal(err)
	}
	own := func(name, target, access string) specs.Mount {
		return specs.Mount{Source: filepath.Join(dir, name), Destination: target, Type: "bind",
			Options: []string{"rbind", "rprivate", access}}
	}
	want := []specs.Mount{hosts, own("hostname", "/etc/hostname", "ro"), own("resolv.conf", "/etc/resolv.conf", "ro"),
		own("shm", "/dev/shm", "rw")}
	if d := cmp.Diff(want, oci.Mounts); d != "" {
		t.Errorf("mounts (-want +got):\n%s", d)
	}
}
