package harness

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// controllerPort is where the first node serves the records to the others.
const controllerPort = 7443

// peerPort is where each of several nodes is reached by the controller.
const peerPort = 7444

// containerdConfig keeps a daemon away from every global path.
const containerdConfig = `version = 3
root = '%[1]s/root'
state = '%[1]s/state'
disabled_plugins = [%[2]s'io.containerd.tracing.processor.v1.otlp',
  'io.containerd.internal.v1.tracing']
[grpc]
  address = '%[1]s/c.sock'
[ttrpc]
  address = '%[1]s/c.sock.ttrpc'
[plugins.'io.containerd.internal.v1.opt']
  path = '%[1]s/opt'
[plugins.'io.containerd.shim.v1.manager']
  socket_dir = '%[1]s/s'
[plugins.'io.containerd.service.v1.diff-service']
  default = ['walking']
`

// withoutCRI are the plugins that Kubernetes alone needs.
const withoutCRI = "'io.containerd.grpc.v1.cri', 'io.containerd.cri.v1.images', 'io.containerd.cri.v1.runtime', " +
	"'io.containerd.podsandbox.controller.v1.podsandbox', 'io.containerd.nri.v1.nri', "

// containerdConfig is the file of the node's daemon.
func (n *Node) containerdConfig() string {
	without := withoutCRI
	if n.harness.opts.CRI {
		without = ""
	}
	text := containerdConfig
	if n.harness.opts.Installed {
		text = asHost.Replace(text)
	}
	text = fmt.Sprintf(text, n.Dir, without)
	if n.harness.opts.Debug {
		text += fmt.Sprintf("[debug]\n  address = '%s/debug.sock'\n", n.Dir)
	}
	return text + n.harness.opts.Containerd
}

// cniConfig joins containers to the node's bridge. The node's own range comes first; the
// whole subnet is allowed on request, so that a VM can keep its address on any node.
const cniConfig = `{
  "cniVersion": "1.0.0",
  "name": "godwit",
  "plugins": [{
    "type": "bridge", "bridge": "%s", "isGateway": false, "ipMasq": false,
    "capabilities": {"ips": true, "mac": true},
    "ipam": {
      "type": "host-local",
      "ranges": [[%s]],
      "routes": [{"dst": "0.0.0.0/0"}]
    }
  }%s]
}
`

// cniPorts gives pods the ports of the host that they ask for.
const cniPorts = `, {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}`

func (n *Node) cniConfig() string {
	ports := ""
	if n.harness.opts.CRI {
		ports = cniPorts
	}
	return fmt.Sprintf(cniConfig, bridge, ranges(n.index), ports)
}

// maxNodes have a range of their own in the CNI configuration.
const maxNodes = 8

// A node has rangesEach ranges of rangeSize addresses.
const (
	rangesEach = 4
	rangeFirst = 10
	rangeSize  = 241
)

// Address is the i-th of the addresses that are a node's own; false: it has not so many.
func Address(node, i int) (string, bool) {
	return fmt.Sprintf("10.88.%d.%d", 1+node+i/rangeSize*maxNodes, rangeFirst+i%rangeSize), i < rangesEach*rangeSize
}

// ranges of all nodes, the node's own first: host-local hands out the first free address
// in this order and takes any of them on request.
func ranges(own int) string {
	var all []string
	for i := range maxNodes {
		for each := range rangesEach {
			start, _ := Address((own+i)%maxNodes, each*rangeSize)
			end, _ := Address((own+i)%maxNodes, each*rangeSize+rangeSize-1)
			all = append(all, fmt.Sprintf(`{"subnet": "%s", "rangeStart": "%s", "rangeEnd": "%s", "gateway": "%s"}`, subnet,
				start, end, Gateway))
		}
	}
	return strings.Join(all, ",\n        ")
}

// inside is a path of the node's own file system as this process reaches it.
func (n *Node) inside(path string) string { return filepath.Join(n.holder.proc("root"), path) }

func (n *Node) writeConfig() error {
	h := n.harness
	_, containerd := n.containerdFile()
	files := map[string]string{
		containerd: n.containerdConfig(),
		n.inside("/etc/cni/net.d/10-godwit.conflist"):     n.cniConfig(),
		n.inside("/etc/resolv.conf"):                      "nameserver " + Gateway + "\n",
		filepath.Join(n.Dir, "docker", "config.json"):     h.opts.Registry.dockerConfig(),
		filepath.Join(h.Dir, "log", n.Name+"-config.log"): n.godwitConfig(),
	}
	if !h.opts.Installed {
		files[n.Config] = n.godwitConfig()
	}
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return fmt.Errorf("configure node %s: %w", n.Name, err)
		}
	}
	return n.installCNI()
}

// installCNI links the plugins to where CNI's users look for them.
func (n *Node) installCNI() error {
	from := filepath.Join(n.harness.root, "bin", "tools", "cni")
	plugins, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("find CNI plugins (make tools): %w", err)
	}
	to := n.inside("/opt/cni/bin")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, p := range plugins {
		if err := os.Symlink(filepath.Join(from, p.Name()), filepath.Join(to, p.Name())); err != nil {
			return err
		}
	}
	return nil
}

// VMM is the kind of VMM that every node runs: what GODWIT_VMM says, else qemu.
func VMM() string { return cmp.Or(os.Getenv("GODWIT_VMM"), "qemu") }

// KVM tells whether every node runs its VMs under KVM: in the KVM ring.
func KVM() bool { return os.Getenv("GODWIT_ACCEL") == "kvm" }

// Ground is the rest of a configuration, from its table guest on: in the ground a kernel
// line that trusts the clock there, and the patience that a slow host is configured with.
func Ground() string {
	if !Nested() {
		return "cmdline = \"\"\n"
	}
	return "cmdline = \"" + NestedCmdline + "\"\n[timeouts]\nboot = \"15m\"\nready = \"15m\"\nnotify = \"15m\"\n"
}

// NestedCmdline is what the kernels of guests in the ground are told.
const NestedCmdline = "mitigations=off tsc=reliable"

// IsVMM tells whether a program, by its path, is a VMM of that kind.
func IsVMM(program string) bool {
	name := filepath.Base(program)
	if VMM() == "qemu" {
		return strings.HasPrefix(name, "qemu-system-")
	}
	return strings.HasPrefix(name, VMM())
}

func (n *Node) godwitConfig() string {
	h := n.harness
	guest := filepath.Join(h.root, "bin", "guest")
	if h.opts.Programs != "" {
		guest = filepath.Join(h.opts.Programs, "guest")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "node = %q\nstate_dir = %q\nrun_dir = %q\nram_dir = %q\nram_size = %q\n",
		n.Name, filepath.Join(n.Dir, "lib"), filepath.Join(n.Dir, "run"), filepath.Join(n.Dir, "ram"),
		cmp.Or(h.opts.RAM, "4GiB"))
	fmt.Fprintf(&b, "stdio_uri = \"file://%s/log/%s-{namespace}-{id}.log\"\n", h.Dir, n.Name)
	if n.harness.opts.Config != nil {
		// Top-level keys must come before the first table.
		b.WriteString(h.opts.Config(n))
	}
	fmt.Fprintf(&b, "\n[vmm]\nkind = %q\naccel = %q\n", VMM(), cmp.Or(os.Getenv("GODWIT_ACCEL"), "auto"))
	if binary := os.Getenv("GODWIT_CLOUD_HYPERVISOR"); binary != "" {
		fmt.Fprintf(&b, "cloud_hypervisor = %q\n", binary)
	}
	if firmware := os.Getenv("GODWIT_CLOUDHV_FIRMWARE"); firmware != "" {
		fmt.Fprintf(&b, "cloud_hypervisor_firmware = %q\n", firmware)
	}
	fmt.Fprintf(&b, "[guest]\nkernel = %q\ninitrd = %q\n", filepath.Join(guest, "vmlinuz"),
		filepath.Join(guest, "initramfs"))
	b.WriteString(Ground())
	fmt.Fprintf(&b, "[containerd]\naddress = %q\n[log]\nlevel = \"debug\"\n", n.Socket)
	b.WriteString(h.opts.Registry.godwitConfig(h.Dir))
	if h.opts.Nodes == 1 {
		return b.String()
	}
	fmt.Fprintf(&b, "[peer]\nlisten = \"%s:%d\"\n", n.Address, peerPort)
	return b.String() + n.controller()
}
