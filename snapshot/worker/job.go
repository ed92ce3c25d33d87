// Package worker runs the parts of a snapshot that touch guest pages in a process of
// their own: its pages are charged to the task's cgroup, and foreign bytes are parsed
// where a crash takes no VM along. The shim calls Client; Main is the process.
//
// The process gets one line of JSON, the job, on stdin, its files as descriptors from 3
// on, and answers with lines of JSON on stdout. It ends when stdin ends: whoever
// started it is gone then.
package worker

import (
	"encoding/json"
	"os"
	"time"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
)

// PushJob captures a paused VM. Store.Repository is the VM's own.
type PushJob struct {
	Store  store.Config    `json:"store"`
	Ref    snapshot.Ref    `json:"ref"`
	Tag    string          `json:"tag,omitempty"` // default: Ref.Tag()
	Spec   *spec.Spec      `json:"spec"`
	Facts  snapshot.Facts  `json:"facts"`
	Resume json.RawMessage `json:"resume,omitempty"`

	Spaces []Space `json:"spaces"`
	State  *File   `json:"state"`
	Disks  []Disk  `json:"disks,omitempty"`
	// Table is the page table that Fill wrote when this VM was restored; nil: it was
	// booted here.
	Table *File `json:"table,omitempty"`

	Memory      int64 `json:"memory,omitempty"`      // of buffers; default 256 MiB
	Concurrency int   `json:"concurrency,omitempty"` // default 4
}

// OpenJob asks what a snapshot is.
type OpenJob struct {
	Store  store.Config  `json:"store"`
	Digest digest.Digest `json:"digest"`
	Want   *snapshot.Ref `json:"want,omitempty"` // nil: any
}

// Opened is the answer: the snapshot exists, is whole as far as its manifest, config
// and index go, and is the one that was wanted.
type Opened struct {
	Config *snapshot.Config `json:"config"`
	Stored uint64           `json:"stored"` // bytes to fetch for pages and state
	Pages  uint64           `json:"pages"`  // bytes of pages that are not zero
}

// VerifyJob reads a snapshot whole and keeps nothing of it.
type VerifyJob struct {
	Store  store.Config  `json:"store"`
	Digest digest.Digest `json:"digest"`

	Memory int64 `json:"memory,omitempty"`
}

// FillJob writes a snapshot into files of the node. Spaces must hold no data; a file
// that is empty gets its size.
type FillJob struct {
	Store  store.Config  `json:"store"`
	Digest digest.Digest `json:"digest"`
	Want   *snapshot.Ref `json:"want,omitempty"`

	Spaces []Space `json:"spaces"`
	State  *File   `json:"state,omitempty"`
	Disks  []Disk  `json:"disks,omitempty"` // read-only disks that the node lacks, by Digest
	Table  *File   `json:"table,omitempty"` // becomes the page table; owner-only, beside the RAM file

	Memory      int64 `json:"memory,omitempty"`
	Concurrency int   `json:"concurrency,omitempty"`
}

// Space is the file of an address space.
type Space struct {
	Name string `json:"name"`
	Disk string `json:"disk,omitempty"` // spec.Disk.ID, of a push
	File *File  `json:"file"`
}

// Disk is the file of a read-only disk.
type Disk struct {
	ID     string        `json:"id,omitempty"`
	Digest digest.Digest `json:"digest"`
	File   *File         `json:"file"`
	From   string        `json:"from,omitempty"` // repository of the same store that may hold it
}

// File is an open file on its way to the worker. The caller keeps and closes its own.
type File struct {
	*os.File
	fd int // in the worker
}

// Open wraps an open file.
func Open(f *os.File) *File { return &File{File: f} }

// MarshalJSON writes the descriptor's number in the worker.
func (f *File) MarshalJSON() ([]byte, error) { return json.Marshal(f.fd) }

// UnmarshalJSON takes the descriptor over.
func (f *File) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &f.fd); err != nil {
		return err
	}
	f.File = os.NewFile(uintptr(f.fd), "job")
	return nil
}

// Progress of a job. Captured is set once, when a push has read the last page.
type Progress struct {
	snapshot.Progress
	Captured time.Time `json:"captured,omitzero"`
}

// job is the line on stdin: one of them is set.
type job struct {
	Push *PushJob `json:"push,omitempty"`
	Open *OpenJob `json:"open,omitempty"`
	Fill *FillJob `json:"fill,omitempty"`

	Verify *VerifyJob `json:"verify,omitempty"`
}

// line is one on stdout.
type line struct {
	Progress *Progress         `json:"progress,omitempty"`
	Receipt  *snapshot.Receipt `json:"receipt,omitempty"`
	Opened   *Opened           `json:"opened,omitempty"`
	Filled   *struct{}         `json:"filled,omitempty"`
	Verdict  *snapshot.Verdict `json:"verdict,omitempty"`
	Error    *remoteError      `json:"error,omitempty"`
}
