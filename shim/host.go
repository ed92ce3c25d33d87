package shim

import (
	"context"
	"os"

	"github.com/containerd/containerd/api/types"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/network"
	"godwit.dev/godwit/shim/holder"
	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/worker"
	"godwit.dev/godwit/vmm"
)

// Host is what a VM is made with. Package join fills it with the real ones, tests with
// ones that fail.
type Host struct {
	Config *config.Config
	// Driver is that of the VMM of that name, or, for an empty one, of the node's choice.
	Driver    func(ctx context.Context, name string) (vmm.Driver, error)
	Network   Network
	Disks     Disks
	Snapshots func(cgroup []string) Snapshots
	Records   nodev1.RecordsService // nil where the node keeps no records
	// Dial connects to the agent behind a VMM's socket.
	Dial func(ctx context.Context, m vmm.Machine, console string) (Agent, error)
	// Hold starts the process whose pid the task shows; it stays once note has it durable.
	Hold func(ctx context.Context, ns holder.Namespace, note func(proc.ID) error) error
	// Pool makes sure that RAM files have a tmpfs to lie in.
	Pool func(dir string, size uint64) error
	// Cgroup names the directories of a task's cgroup on the host.
	Cgroup func(path, namespace, id string) []string
	// Kernel describes what container images are booted with.
	Kernel func() (spec.Kernel, error)
	// HostKernel is the host's, part of a snapshot's facts.
	HostKernel string
}

// driver is that of the VM's VMM.
func (vm *VM) driver(ctx context.Context) (vmm.Driver, error) {
	return vm.host.Driver(ctx, vm.spec().VMM.Name)
}

// Agent is the guest.
type Agent interface {
	agentv1.AgentService
	Close() error
}

// Network joins the namespace of a task with the NICs of its VM.
type Network interface {
	Read(ctx context.Context, netns string) ([]network.Link, error)
	Attach(ctx context.Context, netns string, owner network.Owner, links []network.Link) (Attachment, error)
	Open(ctx context.Context, netns string, links []network.Link) (Attachment, error)
	Detach(ctx context.Context, netns string, links []network.Link) error
}

// Attachment is the wiring of one VM.
type Attachment interface {
	Taps() []*os.File
	Up(ctx context.Context) error
	Announce(ctx context.Context) error
	Down(ctx context.Context) error
	Close() error
}

// Disks turns containerd's mounts into block files.
type Disks interface {
	Prepare(ctx context.Context, req DisksRequest) (*DiskSet, error)
	// Link makes path a read-only disk that the node has already, by its digest.
	Link(digest, path string) error
	Cleanup(ctx context.Context, dir string) error
	// Forget removes the writable disk that an earlier task left beside these mounts: the
	// VM has its own from the snapshot, and the next fresh task would boot from the old.
	Forget(mounts []*types.Mount) error
}

// DisksRequest of a fresh boot.
type DisksRequest struct {
	Namespace, ID string
	Mounts        []*types.Mount
	Dir           string // for the files of this VM alone
	Bundle        string
	WritableSize  int64
	Room          int64 // beside what the disk is asked to have
}

// DiskSet is what a container's root file system is made of.
type DiskSet struct {
	Disks    []spec.Disk // slots are filled in by the shim
	Layers   []string
	Writable string
	Files    []JournalDisk
}

// Snapshots moves the state of VMs to a store and back; worker.Client does it in a
// process of its own.
type Snapshots interface {
	Push(ctx context.Context, j worker.PushJob, notify func(worker.Progress)) (snapshot.Receipt, error)
	Open(ctx context.Context, j worker.OpenJob) (*worker.Opened, error)
	Fill(ctx context.Context, j worker.FillJob, notify func(worker.Progress)) error
}
