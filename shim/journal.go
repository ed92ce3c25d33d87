package shim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/internal/failpoint"
	"godwit.dev/godwit/network"
	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/shim/stdio"
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
	// Patience is how many ms the VM stands still for a controller of the operation that says
	// nothing.
	Patience int64 `json:"patienceMS,omitempty"`
	// Outlived: its record gave the VM to somebody else while this node was called lost.
	Outlived bool `json:"outlived,omitempty"`

	Spec    *spec.Spec     `json:"spec"`
	Bundle  string         `json:"bundle"`
	Created int64          `json:"created,omitempty"` // unix ns: a container that is younger is not this task's
	Config  string         `json:"config,omitempty"`  // path of the node's configuration
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

	Stdio    stdio.URIs `json:"stdio"`
	Resume   Resume     `json:"resume"`
	Restored *Restored  `json:"restored,omitempty"` // nil: it booted here, or came in a live move
	// Filling is where RAM comes from while the VM runs; nil: RAM is whole.
	Filling *Filling `json:"filling,omitempty"`
	// Waking: the wake is committed, and its Start has not come to an end. A successor
	// finishes it. Readdressed: the guest had other addresses when it went to sleep.
	Waking      bool     `json:"waking,omitempty"`
	Readdressed bool     `json:"readdressed,omitempty"`
	BootID      string   `json:"bootID,omitempty"`
	Notices     []Notice `json:"untold,omitempty"` // in their order
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
func (j *Journal) store(dir string) error { return j.replace(dir, nil) }

// replace is store where dir has a draft; nil: none.
func (j *Journal) replace(dir string, draft []byte) error {
	data, err := j.encode()
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write journal: %w", refusedByDisk(err))
	}
	err = failpoint.Record("journal", string(j.Phase), func() error {
		if bytes.Equal(data, draft) {
			if err := durable.Rename(draftFile(dir), journalFile(dir)); err == nil || errors.Is(err, durable.ErrUnsynced) {
				return err
			}
		}
		return durable.WriteFile(journalFile(dir), data, 0o600)
	})
	if err != nil {
		return fmt.Errorf("write journal: %w", refusedByDisk(err))
	}
	return nil
}

func (j *Journal) encode() ([]byte, error) {
	j.Version = version.Journal
	return json.Marshal(j)
}

// refusedByDisk gives the error of a write into state_dir its class.
func refusedByDisk(err error) error {
	switch {
	case durable.IsFull(err):
		return fmt.Errorf("make room in state_dir: %w: %w", err, errdefs.ErrResourceExhausted)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("make state_dir writable: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	return err
}
