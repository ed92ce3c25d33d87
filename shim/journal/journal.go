// Package journal keeps what a node must still know of a VM after a crash: what the VM may do here,
// and every resource it has. It starts and stops nothing.
//
// A Journal is one JSON file in the VM's directory. A Store has the journal of a VM whose shim runs,
// and writes each change before it takes effect. Read and Write are for a VM whose shim is gone.
//
// The format stays: builds of other versions read it. A key that comes later is optional.
package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/network"
	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/shim/stdio"
	"godwit.dev/godwit/vmm"
)

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
	// Reassigned: its record gave the VM to another node while this node was called lost.
	Reassigned bool `json:"outlived,omitempty"`

	Resources
	Task
}

// Resources are what the VM is made of, and what it has on this node.
type Resources struct {
	Spec    *spec.Spec     `json:"spec"`
	Bundle  string         `json:"bundle"`
	Created int64          `json:"created,omitempty"` // unix ns: a container that is younger is not this task's
	Config  string         `json:"config,omitempty"`  // path of the node's configuration
	Shim    proc.ID        `json:"shim"`
	Holder  proc.ID        `json:"holder"`            // the sandbox process
	Process *vmm.Process   `json:"process,omitempty"` // the VMM
	NetNS   string         `json:"netns,omitempty"`
	Links   []network.Link `json:"links,omitempty"`
	Names   *Names         `json:"names,omitempty"` // of a guest without an agent
	// Unplugged: the guest may lack NICs of its Spec. They are given back before it runs.
	Unplugged bool   `json:"unplugged,omitempty"`
	RAM       string `json:"ram,omitempty"`
	// Armed: the kernel has noted what the VM writes since RAM was what its page table says. The
	// first capture makes use of it.
	Armed   bool     `json:"armed,omitempty"`
	Disks   []Disk   `json:"disks,omitempty"`
	RunDir  string   `json:"runDir,omitempty"`
	Cgroup  []string `json:"cgroup,omitempty"`
	Private []string `json:"private,omitempty"` // those of Cgroup that hold this VM alone
	// Members are the containers of a pod, in the order of the Spec's.
	Members []Member `json:"members,omitempty"`
	// Ended are the ends of a pod's containers that are deleted: CRI deletes a task as soon as it has ended.
	Ended []EndedMember `json:"ended,omitempty"`
	// Volumes of a pod are named by their ids in the Spec: this has the id of each source on the host.
	Volumes map[string]string `json:"volumes,omitempty"`
	// StopGrace in ms is what a pod has to end whose VM hibernates when the pod is stopped; 0: it ends as any pod does.
	StopGrace int64 `json:"stopGraceMS,omitempty"`
}

// Member is what a container of a pod has on this node.
type Member struct {
	ID     string  `json:"id"`    // containerd's
	Guest  string  `json:"guest"` // as in the Spec
	Bundle string  `json:"bundle"`
	Holder proc.ID `json:"holder"` // the sandbox process of its own
	// Stdio are its streams, for a successor of the shim.
	Stdio stdio.URIs `json:"stdio,omitzero"`
}

// SetHolder notes the sandbox process of the member with that guest id.
func (j *Journal) SetHolder(guest string, id proc.ID) {
	j.Members = slices.Clone(j.Members)
	for i := range j.Members {
		if j.Members[i].Guest == guest {
			j.Members[i].Holder = id
		}
	}
}

// Task is what the task in the VM needs, and how far its start has come.
type Task struct {
	Stdio    stdio.URIs `json:"stdio"`
	Resume   Resume     `json:"resume"`
	Restored *Restored  `json:"restored,omitempty"` // nil: it booted here, or came in a live move
	// Postcopy is where RAM comes from while the VM runs; nil: RAM is whole.
	Postcopy *Postcopy `json:"filling,omitempty"`
	// Waking: the wake is committed, and its Start has not come to an end. A successor
	// finishes it. Readdressed: the guest had other addresses when it went to sleep.
	Waking      bool `json:"waking,omitempty"`
	Readdressed bool `json:"readdressed,omitempty"`
	// Refusal is why a VM that was to come in a live move does not come here.
	Refusal string   `json:"refusal,omitempty"`
	BootID  string   `json:"bootID,omitempty"`
	Notices []Notice `json:"untold,omitempty"` // in their order
}

// Disk is a disk's file on this node.
type Disk struct {
	ID   string `json:"id"`
	Path string `json:"path"`
}

// File is the journal in a VM's directory.
func File(dir string) string { return filepath.Join(dir, "node.json") }

// Read reads the journal of a VM's directory. Errors: NotFound if there is none, DataLoss if it
// is torn, NotImplemented if a later build wrote it.
func Read(dir string) (*Journal, error) {
	data, err := os.ReadFile(File(dir))
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
	if !version.KnowsJournal(j.Version) {
		return nil, fmt.Errorf("read journal %s: version %d, this build knows %d: %w", dir, j.Version, version.Journal,
			errdefs.ErrNotImplemented)
	}
	return j, nil
}
