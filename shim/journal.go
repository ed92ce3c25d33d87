package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/points"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/network"
	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/vmm"
)

// Phase of the journal is this node's own word on the VM, after a crash too.
type Phase string

// Phases. The first four are a source's, the others a destination's. A source's VM may run in
// SENDING, up to its last pass; in READY a destination's RAM may still have to come: Filling.
const (
	Own      Phase = "OWN"
	Sending  Phase = "SENDING"  // a snapshot is being made, or the VM sent
	Prepared Phase = "PREPARED" // voted; the VMM is stopped
	Released Phase = "RELEASED"
	Incoming Phase = "INCOMING" // a snapshot, or what a source sends, is being filled in
	Ready    Phase = "READY"    // has all that it needs, and has not executed an instruction
	Fenced   Phase = "FENCED"   // given up; this attempt never runs here
)

// Open reports whether an operation holds the VM, so that nobody but its controller
// may end it.
func (p Phase) Open() bool {
	return p == Sending || p == Prepared || p == Incoming || p == Ready
}

// Journal is the durable record of a VM on its node: what it may do, and every resource
// it has, each written before it is made.
type Journal struct {
	Version    int    `json:"version"`
	Phase      Phase  `json:"phase"`
	Generation uint64 `json:"generation"`
	Operation  string `json:"operation,omitempty"`
	Attempt    uint32 `json:"attempt,omitempty"`
	Digest     string `json:"digest,omitempty"`
	Repository string `json:"repository,omitempty"`
	Self       bool   `json:"self,omitempty"`    // the shim opened the operation and closes it
	Move       bool   `json:"move,omitempty"`    // the operation is one: the controller alone commits it
	Adopted    bool   `json:"adopted,omitempty"` // its first shim died: containerd has no task of it

	Spec    *spec.Spec     `json:"spec"`
	Bundle  string         `json:"bundle"`
	Config  string         `json:"config,omitempty"` // path of the node's configuration
	Shim    proc.ID        `json:"shim"`
	Holder  proc.ID        `json:"holder"`
	Process *vmm.Process   `json:"process,omitempty"`
	NetNS   string         `json:"netns,omitempty"`
	Links   []network.Link `json:"links,omitempty"`
	Names   *Names         `json:"names,omitempty"` // of a guest without an agent
	// Unplugged: the guest may lack NICs of its Spec. Whoever lets it run gives them back.
	Unplugged bool   `json:"unplugged,omitempty"`
	RAM       string `json:"ram,omitempty"`
	// Armed: the kernel has noted what the VM writes since RAM was what its page table says. The
	// first capture makes use of it.
	Armed   bool          `json:"armed,omitempty"`
	Disks   []JournalDisk `json:"disks,omitempty"`
	RunDir  string        `json:"runDir,omitempty"`
	Cgroup  []string      `json:"cgroup,omitempty"`
	Private []string      `json:"private,omitempty"` // those of Cgroup that hold this VM alone

	Stdio    Stdio     `json:"stdio"`
	Resume   Resume    `json:"resume"`
	Restored *Restored `json:"restored,omitempty"` // nil: it booted here, or came in a live move
	// Filling is where RAM comes from while the VM runs; nil: RAM is whole.
	Filling *Filling `json:"filling,omitempty"`
	// Waking: the wake is committed, and its Start has not come to an end. A successor
	// finishes it. Readdressed: the guest had other addresses when it went to sleep.
	Waking      bool   `json:"waking,omitempty"`
	Readdressed bool   `json:"readdressed,omitempty"`
	BootID      string `json:"bootID,omitempty"`
}

// JournalDisk is a disk's file on this node.
type JournalDisk struct {
	ID   string `json:"id"`
	Path string `json:"path"`
}

// journalFile of a VM's directory.
func journalFile(dir string) string { return filepath.Join(dir, "node.json") }

// loadJournal answers NotFound if there is none.
func loadJournal(dir string) (*Journal, error) {
	data, err := os.ReadFile(journalFile(dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read journal %s: %w", dir, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	j := new(Journal)
	if err := json.Unmarshal(data, j); err != nil {
		return nil, fmt.Errorf("read journal %s: %w: %w", dir, err, errdefs.ErrDataLoss)
	}
	if j.Version != version.Journal {
		return nil, fmt.Errorf("read journal %s: version %d, this build knows %d: %w", dir, j.Version, version.Journal, errdefs.ErrNotImplemented)
	}
	return j, nil
}

// store makes j durable in dir: a crash leaves the old or the new one, whole.
func (j *Journal) store(dir string) error {
	j.Version = version.Journal
	data, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write journal: %w", refusedByDisk(err))
	}
	err = points.Record("journal", string(j.Phase), func() error { return replaceFile(journalFile(dir), data) })
	if err != nil {
		return fmt.Errorf("write journal: %w", refusedByDisk(err))
	}
	return nil
}

// isFull reports whether a file system had no room.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// refusedByDisk gives the error of a write into state_dir its class.
func refusedByDisk(err error) error {
	switch {
	case isFull(err):
		return fmt.Errorf("make room in state_dir: %w: %w", err, errdefs.ErrResourceExhausted)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("make state_dir writable: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	return err
}

// unfinished is what this process writes before it replaces a file. Others write at the same
// time: behind a shim that died its successor, and what containerd starts to clean up.
func unfinished(path string) string { return fmt.Sprintf("%s.%d.tmp", path, os.Getpid()) }

func replaceFile(path string, data []byte) error {
	tmp := unfinished(path)
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("%w: %w", errUnsynced, err)
	}
	return nil
}

// errUnsynced says that a file has its new content, which a crash may take back.
var errUnsynced = errors.New("replaced and not synced")

// syncDir is a variable for the tests.
var syncDir = func(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// write changes the VM's journal and makes it durable. On an error the journal is as
// before; where the new one had its name already and could not be made durable, the old
// one is written back as well as the disk takes it.
func (vm *VM) write(change func(*Journal)) error {
	return vm.update(func(j *Journal) error { change(j); return nil })
}

// update is write for a change that depends on what the journal says.
func (vm *VM) update(change func(*Journal) error) error {
	vm.journalMu.Lock()
	defer vm.journalMu.Unlock()
	next := *vm.journal
	if err := change(&next); err != nil {
		return err
	}
	if err := next.store(vm.dir); err != nil {
		if errors.Is(err, errUnsynced) {
			if e := vm.journal.store(vm.dir); e != nil && !errors.Is(e, errUnsynced) {
				err = errors.Join(err, e)
			}
		}
		return err
	}
	vm.mu.Lock()
	vm.journal = &next
	vm.mu.Unlock()
	return nil
}

// noted answers the journal as it is now. It is never changed in place.
func (vm *VM) noted() *Journal {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.journal
}
