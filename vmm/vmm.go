// Package vmm says what a VMM must do for godwit. It runs one VM whose RAM is a file of ours,
// and stops it. It saves the VM's device state without its RAM, and loads that state into a new
// process. It adds and removes a NIC. Implementations lie below it and pass the suite of package
// vmmtest.
//
// The order of calls is Driver.Start (the VM exists and has not executed an instruction), for a
// restore LoadState, then Resume and Pause at will. SaveState comes only while paused. Kill
// comes at any time, from any state, more than once.
package vmm

import (
	"context"
	"errors"
	"os"
	"time"
)

// Config is derived from a spec.Spec on each node. Everything in it that the guest can see
// (slots, serials, MACs, sizes) must be equal on both sides of a restore. Paths and descriptors
// may differ.
type Config struct {
	Name string // in logs
	Dir  string // private directory of this incarnation: sockets, logs; exists
	// NetNS is the path of the network namespace that the process is started in. Empty: one of its
	// own, in which there is nothing. It is the caller's where the caller is not root. It is also
	// the caller's where a VMM that needs to see the tap of a NIC starts with one. A NIC that is
	// added later has its tap in NetNS.
	NetNS   string
	Machine string // QEMU's versioned machine name; empty: the driver's default
	CPU     string // QEMU's CPU model; empty: the driver's default
	Memory  uint64 // bytes
	VCPUs   int
	RAM     *os.File // shared file of Memory bytes; the caller keeps and closes its own
	Kernel  string   // path; read when Incoming only with Reboots, for what comes after a reset
	Initrd  string
	Cmdline string
	Disks   []Disk
	// HotDisks: the VM has slots for disks that are plugged in while it runs. The guest sees them.
	HotDisks bool
	NICs     []NIC
	// Agent is the path of the unix socket on which the VMM serves the guest's agent
	// channel (virtio-serial port "agent", or hybrid vsock). The VMM makes it.
	Agent string
	// Firmware boots the VM instead of a kernel: UEFI code for this VMM. NVRAM is a file
	// with its variables, which the guest writes, for a VMM that keeps them. Without
	// Firmware and Kernel the VMM's own BIOS boots, where it has one.
	Firmware *os.File
	NVRAM    *os.File
	// Console takes what the guest writes to its serial port. A file, which must be opened
	// for appending, is cut when it grows too long. With Serial it is nil: that
	// is the path of a unix socket, made by the VMM, that is the serial port both ways, for
	// one client at a time. What the guest writes while there is none may be lost.
	Console *os.File
	Serial  string
	// Reboots: a reset by the guest boots it again, in the same process.
	Reboots bool
	// HyperV shows the guest the interfaces that Windows knows best, where there is KVM.
	HyperV bool
	// Incoming makes a VM without content that waits for LoadState.
	Incoming bool
	// Template: it is Incoming, and what LoadState gets is the state of a template. If the driver's templates are bare,
	// LoadState plugs in the disks and NICs.
	Template bool
	// Ahead: it is Incoming, and another VM stands still for LoadState, but not for Start. What
	// makes the one shorter belongs into the other.
	Ahead bool
	// Track is the userfaultfd that the process holds, if it can be had.
	Track Tracking
	// Mapped, of a VM that is Incoming, is called by LoadState: the VMM has mapped RAM, and waits to touch any of it
	// until Mapped has returned. Its error is that of LoadState. It may be nil. A VMM that cannot wait fails LoadState
	// where Track is TrackPages. Otherwise Mapped is not called then.
	Mapped func(context.Context) error
	// Cgroup, if not empty, holds directories whose cgroup.procs takes the process
	// before it allocates.
	Cgroup []string
}

// Tracking says what the userfaultfd of a VMM is for.
type Tracking int

// Each one serves for those above it, too.
const (
	NoTracking  Tracking = iota
	TrackWrites          // notes of what the VM writes to its RAM
	TrackPages           // pages of RAM that come while the VM runs
)

// Disk is a virtio-blk device on an open file. The file is used buffered: RAM tracking
// does not see O_DIRECT.
type Disk struct {
	ID       string
	Serial   string // at most 20 bytes
	Slot     int
	File     *os.File
	ReadOnly bool
}

// NIC is a virtio-net device on a tap.
type NIC struct {
	ID   string
	Slot int
	MAC  string
	MTU  int
	Tap  *os.File // opened with IFF_VNET_HDR; the caller keeps and closes its own
}

// Facts say what a driver runs on this node, and what a snapshot of it records.
type Facts struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Machine string `json:"machine,omitempty"`
	CPU     string `json:"cpu,omitempty"`   // model given to the guest
	Accel   string `json:"accel,omitempty"` // "kvm" or "tcg"
	Reason  string `json:"-"`               // why this acceleration, for doctor
	// Overhead is the memory that the process may need in addition to the RAM of its VM, in bytes.
	Overhead uint64 `json:"-"`
	// BareTemplates: a template has neither disks nor NICs, because the device state has what depends on their hosts.
	BareTemplates bool `json:"-"`
	// Waits: TrackPages serves. Config.Mapped is called before the VM has touched any of its RAM.
	Waits bool `json:"-"`
	// Majors is of how many older major versions this one takes device state. 0: of each.
	Majors int `json:"-"`
}

// Driver starts VMs of one kind of VMM.
type Driver interface {
	// Probe looks at binaries and rights without starting a VM. An error has class
	// NotFound (no binary), FailedPrecondition (too old, no rights), and says the remedy.
	Probe(ctx context.Context) (Facts, error)
	// Start makes the VM. On error nothing of it is left. ctx bounds the start only.
	Start(ctx context.Context, cfg Config) (Machine, error)
	// Adopt takes over the VM of a process that an earlier shim started.
	Adopt(ctx context.Context, p Process) (Machine, error)
}

// Machine is one running VM. Callers take the role they need.
type Machine interface {
	Lifecycle
	Power
	State
	NICs
	Disks
	Watch
}

// ErrNotResumed is in an error of Resume that came before anything was sent by which a vCPU
// could run. The VMM had died, say. This call has run no vCPU.
var ErrNotResumed = errors.New("no vCPU was told to run")

// ErrUnreachable is in an error of Resume of a Machine that can reach its VMM no more. No other try gets further.
var ErrUnreachable = errors.New("the VMM cannot be reached any more")

// Lifecycle runs and stops the vCPUs. Resume of a running and Pause of a paused VM
// succeed.
type Lifecycle interface {
	// Resume may have let vCPUs run if it fails, unless its error is ErrNotResumed.
	Resume(ctx context.Context) error
	// Pause returns when no vCPU runs and the devices have finished what they had begun.
	Pause(ctx context.Context) error
	// Kill ends the process and returns when it is gone and its sockets are removed.
	// Killing what is gone succeeds.
	Kill(ctx context.Context) error
}

// Power is the button that the guest sees. It decides itself what that means; one that
// listens powers itself off.
type Power interface {
	PowerButton(ctx context.Context) error
}

// State saves and loads device state. RAM is not in it. A VM that has never run may have
// none to save. Of a VM that was started Ahead LoadState is for the Machine that has started it. After a failed
// LoadState the machine can only be killed; after a failed SaveState it is paused as before.
type State interface {
	SaveState(ctx context.Context, to *os.File) error
	LoadState(ctx context.Context, from *os.File) error
}

// NICs plugs and unplugs while the VM runs. RemoveNIC returns when the guest has
// acknowledged the eject; DeadlineExceeded otherwise, and the NIC may be asked for
// again. Such a NIC goes whenever the guest acknowledges after all.
type NICs interface {
	AddNIC(ctx context.Context, nic NIC) error
	RemoveNIC(ctx context.Context, id string) error
	// Ejected reports whether the guest has no NIC of that id, and frees what the VMM may
	// still hold of one that has gone unawaited: its tap can be opened then.
	Ejected(ctx context.Context, id string) (bool, error)
}

// Disks plugs and unplugs disks of a VM that was started with HotDisks, in its hot slots. The
// contract is that of NICs. A disk that is plugged in is part of the device state: a restore needs
// it in Config.Disks, in the same slot.
type Disks interface {
	AddDisk(ctx context.Context, disk Disk) error
	// RemoveDisk asks the guest to release the disk. The guest must have unmounted it before.
	RemoveDisk(ctx context.Context, id string) error
	DiskEjected(ctx context.Context, id string) (bool, error)
}

// Watch tells what happens to the VM.
type Watch interface {
	// Events is closed when the process is gone. Events are hints: a slow reader loses
	// some.
	Events() <-chan Event
	// Done is closed when the process is gone; Exit may be called from then on.
	Done() <-chan struct{}
	Exit() Exit
	Process() Process
}

// Event is something that the VMM reported.
type Event struct {
	Kind   EventKind
	Device string // for device events
	Reason string
	Time   time.Time
}

// EventKind of an Event.
type EventKind string

// What can be reported.
const (
	Paused        EventKind = "paused"
	Resumed       EventKind = "resumed"
	PoweredOff    EventKind = "powered-off" // by the guest
	Reset         EventKind = "reset"       // by the guest; the process ends, unless Config.Reboots
	Panicked      EventKind = "panicked"
	DeviceRemoved EventKind = "device-removed"
)

// Exit says how the process ended. Clean is true after a power-off by the guest. Unsure says of
// a clean one that a signal from outside, which this VMM obeys, looks the same.
type Exit struct {
	Clean  bool
	Unsure bool
	Status int // exit status, or 128 + signal
	Reason string
	At     time.Time
}

// Process is what is written down so that another shim can adopt the VM.
type Process struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"startTime"` // field 22 of /proc/PID/stat: the pid was not reused
	// of the host, whose pids and start times they are; empty: an earlier build wrote it
	Boot    string   `json:"boot,omitempty"`
	Dir     string   `json:"dir"`
	Control string   `json:"control"` // path of the VMM's control socket
	Agent   string   `json:"agent"`
	VSock   bool     `json:"vsock,omitempty"` // Agent is a hybrid vsock: a line asks for the port first
	Serial  string   `json:"serial,omitempty"`
	Reboots bool     `json:"reboots,omitempty"`
	Work    string   `json:"work,omitempty"` // how the VMM names its own directory in Dir; empty: it has none
	Memory  uint64   `json:"memory"`
	NICs    []string `json:"nics,omitempty"`
	// Disks are those in hot slots.
	Disks []string `json:"disks,omitempty"`
	// Console is the file that takes the guest's serial port, cut when it grows too long;
	// empty if it is no file.
	Console   string `json:"console,omitempty"`
	Userfault int    `json:"userfault,omitempty"` // its descriptor that tracks RAM; 0: none
	// Halting is for Adopt: a Pause may have failed, or be under way. The first Resume makes sure that the vCPUs run.
	Halting bool `json:"-"`
}
