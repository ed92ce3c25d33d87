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
	// RAMHugePages is the size of the huge pages, 2MiB or 1GiB, that RAM files consist of; 0:
	// RAMDir is a tmpfs.
	RAMHugePages Size `toml:"ram_huge_pages"`

	HostNetwork string `toml:"host_network"` // "refuse" (default) or "loopback"
	// of tasks that godwitd creates; default file:///var/log/godwit/{namespace}-{id}.log
	StdioURI   string    `toml:"stdio_uri"`
	Network    Network   `toml:"network"`
	VMM        VMM       `toml:"vmm"`
	Guest      Guest     `toml:"guest"`
	VM         VM        `toml:"vm"`
	Cache      Cache     `toml:"cache"`
	Template   Template  `toml:"template"`
	Worker     Worker    `toml:"worker"`
	Registry   Registry  `toml:"registry"`
	Retention  Retention `toml:"retention"`
	Seal       Seal      `toml:"seal"`
	Sign       Sign      `toml:"sign"`
	Controller Control   `toml:"controller"`
	Peer       Peer      `toml:"peer"`
	Move       Move      `toml:"move"`
	NodeLoss   NodeLoss  `toml:"node_loss"`
	Tracing    Tracing   `toml:"tracing"`
	TLS        TLS       `toml:"tls"`
	Containerd Runtime   `toml:"containerd"`
	CNI        CNI       `toml:"cni"`
	Metrics    Metrics   `toml:"metrics"`
	Timeouts   Timeouts  `toml:"timeouts"`
	Log        Log       `toml:"log"`
	Logs       Logs      `toml:"logs"`

	// Kubernetes says that the set-up of a Kubernetes node has written one of the files.
	Kubernetes bool `toml:"-"`

	// Renamed are the keys that a file has by their old names, each once.
	Renamed []Renamed `toml:"-"`
}

// Network is what guests may do in it.
type Network struct {
	// Spoof is whether a guest may send frames with another source than the MAC and the addresses
	// of its NIC: "deny" or "allow". Default: deny for container images, allow for VM disks.
	Spoof string `toml:"spoof"`
}

// VMM picks the VMM.
type VMM struct {
	Kind string `toml:"kind"` // auto (default), qemu, cloud-hypervisor
	QEMU string `toml:"qemu"` // binary; default qemu-system-x86_64 in PATH
	// CloudHypervisor is a binary; default cloud-hypervisor in PATH.
	CloudHypervisor string `toml:"cloud_hypervisor"`
	DataDir         string `toml:"data_dir"` // QEMU's -L, if its firmware is elsewhere
	Accel           string `toml:"accel"`    // auto (default), kvm, tcg
	// FirstUser is the first of the users that VMMs run as, each VM's another one; 0: root,
	// which AllowRoot must permit.
	// Default 1879048192, from where on systemd leaves all to the administrator.
	FirstUser int `toml:"first_user"`
	// AllowRoot permits VMMs that are root, without capabilities; default false.
	AllowRoot bool `toml:"allow_root"`
	// Firmware and FirmwareVars are UEFI code for QEMU and the variables that a VM begins
	// with; defaults: those of Debian's package ovmf. A node without them boots no VM disk
	// by firmware.
	Firmware     string `toml:"firmware"`
	FirmwareVars string `toml:"firmware_vars"`
	// CloudHypervisorFirmware is UEFI code for Cloud Hypervisor; default: none.
	CloudHypervisorFirmware string `toml:"cloud_hypervisor_firmware"`
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
	MaxDisk      Size `toml:"max_disk"`      // of a VM disk; default 1TiB
	// Overhead is what VMM, shim and worker of a VM may use in addition to its RAM; 0: as much as
	// they may need.
	Overhead Size `toml:"overhead"`
}

// Cache of read-only disks, and of what snapshots consist of, on the node.
type Cache struct {
	MaxSize Size `toml:"max_size"` // of disks; default 20GiB; files in use are never evicted
	Packs   Size `toml:"packs"`    // of packs of snapshots; default 10GiB; 0: none are kept
}

// Template is what the VMs of a node share: states after a boot, and pages of images.
type Template struct {
	Boot  BootTemplates `toml:"boot"`
	Image GoldenTables  `toml:"image"`

	// Names that keys of Boot had in the release before. They are nil once a file is read.
	Mode    *string `toml:"mode"`
	After   *int    `toml:"after"`
	Max     *int    `toml:"max"`
	MaxSize *Size   `toml:"max_size"`
}

// BootTemplates is how VMs are started as copies of one that was booted before.
type BootTemplates struct {
	Mode    string `toml:"mode"`     // on (default), off: every VM boots
	After   int    `toml:"after"`    // boots of one shape until its template is made; default 2
	Max     int    `toml:"max"`      // templates that are kept, the last used ones; default 8
	MaxSize Size   `toml:"max_size"` // of all on the disk; default 2GiB
}

// GoldenTables is how snapshots refer to pages of golden snapshots. The node keeps a table of
// the pages of each, in memory.
type GoldenTables struct {
	Mode    string `toml:"mode"`     // on (default), off: a snapshot has all its pages
	Max     int    `toml:"max"`      // tables that are kept, the last used ones; default 16
	MaxSize Size   `toml:"max_size"` // of all of them; default 1GiB
}

// Worker bounds the processes that handle RAM pages.
type Worker struct {
	Memory      Size `toml:"memory"`      // of buffers; default 256MiB
	Concurrency int  `toml:"concurrency"` // uploads and downloads at once; default 4
	// Tracking is how changed pages of a running VM are found: auto (default), uffd,
	// soft-dirty, content.
	Tracking string `toml:"tracking"`
	// PauseBudget is how long a capture may have its VM stand still if passes before the
	// pause can help it; 0: no passes; default 50ms.
	PauseBudget Duration `toml:"pause_budget"`
	Bandwidth   Size     `toml:"bandwidth"` // bytes a second of one process; 0: no limit
	// Restore is when the RAM of a VM that wakes comes, one of RestoreModes; default auto.
	Restore string `toml:"restore"`
}

// Registry is where snapshots go. At most one of Repository and Layout is set by a file. Without
// either Layout is a directory below state_dir.
type Registry struct {
	Repository   string `toml:"repository"`    // prefix, such as registry.example:5000/godwit
	PlainHTTP    bool   `toml:"plain_http"`    // no TLS
	CAFile       string `toml:"ca_file"`       // PEM, in addition to the system's
	DockerConfig string `toml:"docker_config"` // directory of config.json; default: DOCKER_CONFIG or root's
	HostsDir     string `toml:"hosts_dir"`     // of containerd's hosts.toml files, such as /etc/containerd/certs.d
	Layout       string `toml:"layout"`        // directory of OCI layouts instead of a registry

	// Own says that no file names a store: Layout is DefaultStore, which no other node has.
	Own bool `toml:"-"`
}

// Retention of snapshots that no record needs.
type Retention struct {
	Keep    int      `toml:"keep"`     // newest of a VM that stay; default 1
	KeepFor Duration `toml:"keep_for"` // younger ones stay too; default 0s
	Ended   Duration `toml:"ended"`    // that a spent snapshot outlasts its VM's container; default 24h; 0: it stays
	Grace   Duration `toml:"grace"`    // that a leftover is watched before it is deleted; default 1h
}

// Seal encrypts what snapshots hold of a VM. Where KeyFiles or Recipients are set, new
// snapshots are sealed.
type Seal struct {
	KeyFiles     []string `toml:"key_files"`     // 32 bytes in base64, for all nodes; the first seals, each opens
	Recipients   []string `toml:"recipients"`    // of age, such as age1...; seal too
	IdentityFile string   `toml:"identity_file"` // of age; opens
	Required     bool     `toml:"required"`      // a snapshot that is not sealed is not restored
}

// Sign vouches for snapshots. Where KeyFile is set, new ones are signed.
type Sign struct {
	KeyFile  string   `toml:"key_file"` // PKCS #8 in PEM: ECDSA or Ed25519
	Trusted  []string `toml:"trusted"`  // public keys in PEM; that of key_file is one too
	Required bool     `toml:"required"` // a snapshot that no trusted key has signed is not restored
}

// Control names the controller. Both empty: this node is its own.
type Control struct {
	Listen  string `toml:"listen"`  // this node holds the store and serves it here, host:port
	Address string `toml:"address"` // of the node that does; of several, with commas between them
	Etcd    Etcd   `toml:"etcd"`    // where the records lie; without endpoints: in a file of this node
	// Repositories are prefixes below which other nodes' VMs may have their repositories, besides
	// this node's own.
	Repositories []string `toml:"repositories"`
	// RecordsPerNode bounds the records that another node has made, OperationsPerNode what it drives at once.
	RecordsPerNode    int `toml:"records_per_node"`    // default 10000
	OperationsPerNode int `toml:"operations_per_node"` // default 1000
}

// Etcd is a cluster in which several controllers keep the records, so that one of them may
// be lost.
type Etcd struct {
	Endpoints []string `toml:"endpoints"` // URLs; http:// on this host only
	Prefix    string   `toml:"prefix"`    // of all keys; default /godwit/
	CA        string   `toml:"ca"`        // PEM; default: the system's
	Cert      string   `toml:"cert"`      // of the client, PEM
	Key       string   `toml:"key"`
}

// Peer is where the controller, and other nodes' VMs, reach this node. Without it no VM
// comes or goes but by hibernate and wake.
type Peer struct {
	Listen    string `toml:"listen"`    // host:port, mutual TLS
	Advertise string `toml:"advertise"` // host:port that others use; default: listen
}

// Move bounds the moves under way at once. The controller's counts.
type Move struct {
	Parallel int `toml:"parallel"` // of all; default 5
	Outgoing int `toml:"outgoing"` // from one node; default 2
	Incoming int `toml:"incoming"` // to one node; default 2
	// Pull is who may bring a VM to a node that did not have it last: any (default), that node
	// too; controller, only the VM's own node and the controller.
	Pull string `toml:"pull"`
}

// Values of Move.Pull.
const (
	PullAny        = "any"
	PullController = "controller"
)

// Tracing says where spans of OpenTelemetry go.
type Tracing struct {
	Endpoint string `toml:"endpoint"` // URL of a collector, OTLP over HTTP; default: nowhere
}

// Policies of NodeLoss.
const (
	LossReport = "report"
	LossNewest = "newest"
)

// NodeLoss is what the controller does about a node that has fallen silent.
type NodeLoss struct {
	Policy string   `toml:"policy"` // report (default) or newest
	After  Duration `toml:"after"`  // of silence; default 2m
	// Fence is a program and its arguments, to which the node's name is added. Its success
	// proves that the node runs nothing any more.
	Fence []string `toml:"fence"`
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
	// NIC is how long a guest may take to let a NIC go. It is also how long it may take to use the
	// address of a NIC that was plugged in. Default 30s.
	NIC Duration `toml:"nic"`
	// Ready is how long a capture waits for a workload that is asked whether it is ready. It holds
	// for workloads that do not say how long that may take. Default 30s.
	Ready Duration `toml:"ready"`
	// Notify is how long a workload may take over one word on its snapshots; default 10s.
	Notify Duration `toml:"notify"`
}

// Logs are the files that the output of woken VMs goes to, where stdio_uri or --stdio names
// a file.
type Logs struct {
	MaxBytes Size `toml:"max_bytes"` // of one file; 0: no bound; default 16MiB
	Files    int  `toml:"files"`     // that are kept of a VM, the current one included; default 4
}

// Log of the programs.
type Log struct {
	Level string `toml:"level"` // debug, info (default), warn, error
}

// Duration is a time.Duration written as text.
type Duration time.Duration

// Size is a number of bytes written as text.
type Size uint64
