// Package config is the configuration of a node: one TOML file and its drop-ins, read
// by the shim, godwitd and the CLI. An unknown key is refused by name.
package config

import "time"

// Config of a node. Sizes are written as "512MiB"; durations as "30s".
type Config struct {
	Node     string `toml:"node"`      // name of this node; default: the host name
	StateDir string `toml:"state_dir"` // durable state; default /var/lib/godwit
	RunDir   string `toml:"run_dir"`   // sockets; default /run/godwit
	RAMDir   string `toml:"ram_dir"`   // RAM files, a tmpfs that godwitd mounts; default run_dir/ram
	RAMSize  Size   `toml:"ram_size"`  // of that tmpfs; 0: half of the host's memory

	HostNetwork string   `toml:"host_network"` // "refuse" (default) or "loopback"
	StdioURI    string   `toml:"stdio_uri"`    // of tasks that godwitd creates; default file:///var/log/godwit/{namespace}-{id}.log
	VMM         VMM      `toml:"vmm"`
	Guest       Guest    `toml:"guest"`
	VM          VM       `toml:"vm"`
	Cache       Cache    `toml:"cache"`
	Worker      Worker   `toml:"worker"`
	Registry    Registry `toml:"registry"`
	Controller  Control  `toml:"controller"`
	TLS         TLS      `toml:"tls"`
	Containerd  Runtime  `toml:"containerd"`
	CNI         CNI      `toml:"cni"`
	Metrics     Metrics  `toml:"metrics"`
	Timeouts    Timeouts `toml:"timeouts"`
	Log         Log      `toml:"log"`
}

// VMM picks the VMM.
type VMM struct {
	Kind string `toml:"kind"` // auto (default), qemu, cloud-hypervisor
	QEMU string `toml:"qemu"` // binary; default qemu-system-x86_64 in PATH
	// CloudHypervisor is a binary; default cloud-hypervisor in PATH.
	CloudHypervisor string `toml:"cloud_hypervisor"`
	DataDir         string `toml:"data_dir"` // QEMU's -L, if its firmware is elsewhere
	Accel           string `toml:"accel"`    // auto (default), kvm, tcg
}

// Guest is what container images are booted with.
type Guest struct {
	Kernel string `toml:"kernel"` // default /usr/share/godwit/vmlinuz
	Initrd string `toml:"initrd"` // default /usr/share/godwit/initramfs
	// Cmdline is appended to what godwit needs itself.
	Cmdline string `toml:"cmdline"`
}

// VM holds the defaults of a VM that says nothing itself.
type VM struct {
	Memory       Size `toml:"memory"`        // default 512MiB
	WritableSize Size `toml:"writable_size"` // of the writable disk, sparse; default 8GiB
	// Overhead is what VMM, shim and worker of a VM may use beside its RAM; 0: as much as
	// they may need.
	Overhead Size `toml:"overhead"`
}

// Cache of read-only disks on the node.
type Cache struct {
	MaxSize Size `toml:"max_size"` // default 20GiB; files in use are never evicted
}

// Worker bounds the processes that handle RAM pages.
type Worker struct {
	Memory      Size `toml:"memory"`      // of buffers; default 256MiB
	Concurrency int  `toml:"concurrency"` // uploads and downloads at once; default 4
}

// Registry is where snapshots go. At most one of Repository and Layout is set; neither
// refuses hibernate.
type Registry struct {
	Repository   string `toml:"repository"`    // prefix, such as registry.example:5000/godwit
	PlainHTTP    bool   `toml:"plain_http"`    // no TLS
	CAFile       string `toml:"ca_file"`       // PEM, beside the system's
	DockerConfig string `toml:"docker_config"` // directory of config.json; default: DOCKER_CONFIG or root's
	Layout       string `toml:"layout"`        // directory of OCI layouts instead of a registry
}

// Control names the controller. Both empty: this node is its own.
type Control struct {
	Listen  string `toml:"listen"`  // this node holds the store and serves it here, host:port
	Address string `toml:"address"` // of the node that does
}

// TLS files of this node; the defaults are those that godwit node init and join write.
type TLS struct {
	CA   string `toml:"ca"`   // default state_dir/pki/ca.crt
	Cert string `toml:"cert"` // default state_dir/pki/node.crt
	Key  string `toml:"key"`  // default state_dir/pki/node.key
}

// Runtime is the containerd that godwitd is a client of.
type Runtime struct {
	Address string `toml:"address"` // default /run/containerd/containerd.sock
	Runtime string `toml:"runtime"` // default io.containerd.godwit.v1
}

// CNI of the tasks that godwitd creates.
type CNI struct {
	ConfDir string `toml:"conf_dir"` // default /etc/cni/net.d
	BinDir  string `toml:"bin_dir"`  // default /opt/cni/bin
}

// Metrics are served on run_dir/metrics.sock, and here too if set (127.0.0.1, or TLS).
type Metrics struct {
	Address string `toml:"address"`
}

// Timeouts of steps.
type Timeouts struct {
	Boot      Duration `toml:"boot"`      // VMM start to the agent's first answer; default 60s
	Operation Duration `toml:"operation"` // hibernate or wake up to the commit; default 10m
	Abort     Duration `toml:"abort"`     // rollback after a failure; default 30s
	Daemon    Duration `toml:"daemon"`    // a shim's call to godwitd; default 10s
}

// Log of the programs.
type Log struct {
	Level string `toml:"level"` // debug, info (default), warn, error
}

// Duration is a time.Duration written as text.
type Duration time.Duration

// Size is a number of bytes written as text.
type Size uint64
