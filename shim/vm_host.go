package shim

import (
	"context"
	"io"
	"net"
	"os"

	"github.com/containerd/containerd/api/types"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/network"
	"godwit.dev/godwit/network/dhcp"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/shim/sandboxprocess"
	"godwit.dev/godwit/shim/template"
	"godwit.dev/godwit/shim/tracking"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/worker"
	"godwit.dev/godwit/vmm"
)

// Host is what a VM is made with. Package join fills it with the real ones, tests with
// ones that fail.
type Host struct {
	Config *config.Config
	// Driver is that of the VMM of that name, or, for an empty one, of the node's choice.
	Driver  func(ctx context.Context, name string) (vmm.Driver, error)
	Network Network
	// Localhost answers listeners that get every connection to localhost in a network namespace; nil: there are none.
	Localhost func(netns string) ([]net.Listener, error)
	Disks     Disks
	Snapshots func(cgroup []string) Snapshots
	Lazy      Lazy                  // nil: RAM is whole before a VM runs
	Records   nodev1.RecordsService // nil where the node keeps no records
	// Unasked says that Create asks no record: none of this node's VMs can have one yet. A VM of such a
	// Create may get its record later.
	Unasked bool
	// Orders is the node's daemon, which drives operations; nil where it keeps no records.
	Orders Orders
	// Pods knows which VM a pod is; nil where the node keeps no records.
	Pods Pods
	// Dial connects to the agent that a VMM's socket leads to. first is the first call; nil: Info.
	Dial func(ctx context.Context, m vmm.Machine, console string, first FirstCall) (Agent, error)
	// Hold starts the process whose pid the task shows; it stays once note has it durable.
	Hold func(ctx context.Context, ns sandboxprocess.Namespace, note func(proc.ID) error) error
	// Pool makes sure that RAM files have a tmpfs, or a hugetlbfs of such pages, to lie in.
	Pool func(dir string, size, page uint64) error
	// Cgroup names the directories of a task's cgroup on the host.
	Cgroup func(path, namespace, id string, set cgroup.Cpuset) ([]string, error)
	// Kernel describes what container images are booted with.
	Kernel func() (spec.Kernel, error)
	// Templates are the node's; nil: every VM boots.
	Templates *template.Store
	// Tracking is how changed pages of RAM are found here; nil: by their content.
	Tracking func(ctx context.Context) tracking.Choice
	// TrimMemory gives back memory that is not needed while the VM only runs; nil: it is kept.
	TrimMemory func() error
	// HostKernel is the host's, part of a snapshot's facts.
	HostKernel string
}

// asks reports whether what a Create finds here may be somebody else's by the records.
func (h *Host) asks() bool { return h.Records != nil && !h.Unasked }

// FirstCall of a connection.
type FirstCall func(ctx context.Context, a agentv1.AgentService) error

// Orders is the node's daemon. Operations that it starts are its own, whatever becomes of who ordered them.
type Orders interface {
	Checkpoint(ctx context.Context, req *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error)
	Status(ctx context.Context, req *nodev1.StatusRequest) (*nodev1.StatusResponse, error)
	// Expected answers what was ordered of a pod that is to move here.
	Expected(ctx context.Context, vm *nodev1.VM) (*nodev1.ExpectedResponse, error)
	// Image answers which image CRI has made a container of: the digest of its configuration.
	Image(ctx context.Context, namespace, container string) (string, error)
}

// Pods asks the controller about pods. NotImplemented: it knows none, as without Kubernetes.
type Pods interface {
	Resolve(ctx context.Context, req *nodev1.ResolveRequest) (*nodev1.ResolveResponse, error)
	Stopping(ctx context.Context, req *nodev1.StoppingRequest) (*nodev1.StoppingResponse, error)
	store.Logins
	// Hibernate and Status are the daemon's.
	Hibernate(ctx context.Context, req *nodev1.HibernateRequest) (*nodev1.StatusResponse, error)
	Status(ctx context.Context, req *nodev1.StatusRequest) (*nodev1.StatusResponse, error)
}

// storeOf says how to reach a repository: with the login and the keys that the controller has for it, else with the
// node's own. An error comes with the latter.
func (h *Host) storeOf(ctx context.Context, repository string) (store.Config, error) {
	cfg := store.ConfigOf(h.Config, repository)
	if h.Pods == nil || !h.Config.Kubernetes || !h.asks() {
		return cfg, nil
	}
	return cfg.WithLogin(ctx, h.Pods, nodev1.Use_USE_CONTENT)
}

// driver is that of the VM's VMM.
func (vm *VM) driver(ctx context.Context) (vmm.Driver, error) {
	return vm.host.Driver(ctx, vm.spec().VMM.Name)
}

// chooseTracking answers how changed pages are found on the VM's node.
func (vm *VM) chooseTracking(ctx context.Context) tracking.Choice { return vm.host.chooseTracking(ctx) }

// Agent is the guest.
type Agent interface {
	agentv1.AgentService
	// Hold has its channel stand still until Release: what the host takes from a guest that is paused changes its RAM.
	Hold(ctx context.Context) error
	Release()
	Close() error
}

// Network joins the namespace of a task with the NICs of its VM.
type Network interface {
	// ForGuest is asked before the interfaces of a VM that comes here are made: nothing may speak for it yet.
	ForGuest(netns string) error
	Read(ctx context.Context, netns string) ([]network.Link, error)
	// FindGateways is asked before Attach, for guests that are not told by an agent.
	FindGateways(ctx context.Context, netns string, links []network.Link) ([]network.Link, error)
	Attach(ctx context.Context, netns string, owner network.Owner, links []network.Link) (Attachment, error)
	Open(ctx context.Context, netns string, links []network.Link) (Attachment, error)
	Detach(ctx context.Context, netns string, links []network.Link) error
	// Leave is Detach for a VM that runs elsewhere: nothing here speaks for it.
	Leave(ctx context.Context, netns string, links []network.Link) error
}

// Attachment is the wiring of one VM.
type Attachment interface {
	Taps() []*os.File
	// Tap is that of the i-th link, for a NIC that is plugged in while the VM runs.
	Tap(i int) (*os.File, error)
	// Serve answers the DHCP of the guest on a link that has a sink, until Close.
	Serve(ctx context.Context, link network.Link, server *dhcp.Server, leased func(dhcp.Lease)) error
	Up(ctx context.Context) error
	// Mute lets the guest write to its NICs, but no frame leaves them.
	Mute(ctx context.Context) error
	Announce(ctx context.Context) error
	Down(ctx context.Context) error
	Close() error
}

// Disks turns containerd's mounts into block files.
type Disks interface {
	Prepare(ctx context.Context, req DisksRequest) (*DiskSet, error)
	// CarriesDisk reports whether the image below these mounts is a VM disk by its looks.
	CarriesDisk(ctx context.Context, mounts []*types.Mount) (bool, error)
	// PrepareVMDisk makes the files of a VM that boots the system on a disk.
	PrepareVMDisk(ctx context.Context, req VMDiskRequest) (*DiskSet, error)
	// PrepareImage makes the read-only disks of a container of a pod: Layers of the answer, one wherever it can be one.
	// Two containers with one image get disks with the same ids. A build goes on after
	// the end of ctx: the next call finds it.
	PrepareImage(ctx context.Context, req DisksRequest) (*DiskSet, error)
	// PrepareScratch makes the one writable disk of a pod.
	PrepareScratch(ctx context.Context, req DisksRequest) (*DiskSet, error)
	// Link makes path a read-only disk that the node has already, by its digest.
	Link(ctx context.Context, digest, path string) error
	// Keep reads a disk to its end, has the node keep it, and makes path a link to it.
	// DataLoss if it is not the content of the digest.
	Keep(ctx context.Context, digest string, from io.Reader, path string) error
	Cleanup(ctx context.Context, dir string) error
	// Forget removes the writable disk that an earlier task left next to these mounts: the VM has its own from the
	// snapshot, and the next fresh task would boot from the old.
	Forget(req DisksRequest) error
	// KeepWoken has the next task of the container find what a VM that woke writes; where the container has no root file
	// system, all disks. dir is that of Forget. It may be repeated.
	KeepWoken(namespace, id, dir string, set *DiskSet) error
	// ForgetKept removes what a task of the container has left for the next one.
	ForgetKept(namespace, id string) error
}

// DisksRequest of a fresh boot.
type DisksRequest struct {
	Namespace, ID string
	Container     string // spec.AnnotationContainer
	Mounts        []*types.Mount
	Dir           string // for the files of this VM alone
	Bundle        string
	WritableSize  int64
	Room          int64          // in addition to what the disk is asked to have
	Program       bundle.Program // looked for in the mounts
}

// VMDiskRequest of a fresh boot.
type VMDiskRequest struct {
	Namespace, ID string
	Container     string // spec.AnnotationContainer
	Mounts        []*types.Mount
	Dir           string // for the files of this VM alone
	VMM           string // its name
	Disk          bundle.VMDisk
}

// DiskSet is what a container's root file system, or a VM disk, is made of.
type DiskSet struct {
	Path     string      // of a VM disk in its image
	Disks    []spec.Disk // slots are filled in by the shim
	Layers   []string
	Writable string
	Files    []journal.Disk
}

// Snapshots moves the state of VMs to a store and back; worker.Client does it in a
// process of its own.
type Snapshots interface {
	Push(ctx context.Context, j worker.PushJob, notify func(worker.Progress)) (snapshot.Receipt, error)
	Open(ctx context.Context, j worker.OpenJob) (*worker.Opened, error)
	Fill(ctx context.Context, j worker.FillJob, notify func(worker.Progress)) error
	LazyFill(ctx context.Context, j worker.LazyJob, notify func(worker.Progress)) error
	Mover
}

// Mover streams VMs to other nodes, and takes them.
type Mover interface {
	Send(ctx context.Context, j worker.SendJob, notify func(worker.Progress)) (snapshot.Sent, error)
	Receive(ctx context.Context, j worker.ReceiveJob, notify func(worker.Progress)) error
}
