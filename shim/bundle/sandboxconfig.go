package bundle

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	criv1 "godwit.dev/godwit/api/cri/v1"
)

// defaultSysctls are those that containerd's CRI plugin gives a pod which does not set them.
var defaultSysctls = map[string]string{
	"net.ipv4.ip_unprivileged_port_start": "0",
	"net.ipv4.ping_group_range":           "0 2147483647",
}

// WriteSandbox fills the bundle of a pod that containerd makes by its sandbox API: such a bundle is empty. It gets the
// config.json that the CRI plugin writes for a pause container, and the files that it makes for the containers.
func WriteSandbox(dir, id, netns string, c *criv1.PodSandboxConfig) error {
	u := c.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if u != nil && u.GetMode() != criv1.NamespaceMode_NODE {
		return refused("hostUsers: false", "a pod by containerd's sandbox API has no user namespace yet: use the "+
			"runtime handler without sandboxer = \"shim\"")
	}
	data, err := json.Marshal(sandboxSpec(id, netns, c))
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := writeSandboxFiles(dir, c); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return nil
}

// sandboxSpec is what the CRI plugin makes for a pause container, without what only its process has.
func sandboxSpec(id, netns string, c *criv1.PodSandboxConfig) *specs.Spec {
	l := c.GetLinux()
	oci := &specs.Spec{
		Version: specs.Version, Hostname: c.GetHostname(), Annotations: sandboxAnnotations(id, c),
		Root:  &specs.Root{Path: "rootfs", Readonly: true},
		Linux: &specs.Linux{Namespaces: sandboxNamespaces(netns, l.GetSecurityContext().GetNamespaceOptions())},
	}
	if parent := l.GetCgroupParent(); parent != "" {
		oci.Linux.CgroupsPath = cgroupOf(parent, id)
	}
	oci.Linux.Sysctl = maps.Clone(defaultSysctls)
	maps.Copy(oci.Linux.Sysctl, l.GetSysctls())
	return oci
}

// sandboxAnnotations are CRI's own and, of the pod's, those of godwit.
func sandboxAnnotations(id string, c *criv1.PodSandboxConfig) map[string]string {
	m := c.GetMetadata()
	all := map[string]string{criType: roleSandbox, criSandbox: id, criNamespace: m.GetNamespace(),
		criSandboxName: m.GetName(), criUID: m.GetUid()}
	for key, value := range c.GetAnnotations() {
		if strings.HasPrefix(key, Prefix) {
			all[key] = value
		}
	}
	if r := c.GetLinux().GetResources(); r != nil {
		all[criMemory] = strconv.FormatInt(r.GetMemoryLimitInBytes(), 10)
		all[criQuota] = strconv.FormatInt(r.GetCpuQuota(), 10)
		all[criPeriod] = strconv.FormatInt(r.GetCpuPeriod(), 10)
	}
	return all
}

// sandboxNamespaces leaves out those of the host.
func sandboxNamespaces(netns string, o *criv1.NamespaceOption) []specs.LinuxNamespace {
	all := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	if o.GetNetwork() != criv1.NamespaceMode_NODE {
		all = append(all, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: netns},
			specs.LinuxNamespace{Type: specs.UTSNamespace})
	}
	if o.GetPid() != criv1.NamespaceMode_NODE {
		all = append(all, specs.LinuxNamespace{Type: specs.PIDNamespace})
	}
	if o.GetIpc() != criv1.NamespaceMode_NODE {
		all = append(all, specs.LinuxNamespace{Type: specs.IPCNamespace})
	}
	return all
}

// cgroupOf is the sandbox's below that of its pod: for cgroups of systemd SLICE:PREFIX:NAME, else a path.
func cgroupOf(parent, id string) string {
	if base := path.Base(parent); strings.HasSuffix(base, ".slice") {
		return base + ":cri-containerd:" + id
	}
	return path.Join(parent, id)
}
