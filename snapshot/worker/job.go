// Package worker runs the parts of a snapshot that touch guest pages in a process of
// their own: its pages are charged to the task's cgroup, and foreign bytes are parsed
// where a crash takes no VM along. The shim calls Client; Main is the process.
//
// The process gets one line of JSON, the job, on stdin, and its files as descriptors from 3 on. It answers with
// lines of JSON on stdout. It ends when stdin ends: the process that started it is gone then.
package worker

import (
	"encoding/json"
	"os"
	"time"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/cache"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/track"
)

// PushJob captures a VM. Store.Repository is the VM's own.
type PushJob struct {
	// Live is the VM, if it runs: it is called here, not in the worker. Nil: it is paused,
	// and State and Resume are there.
	Live     snapshot.Live `json:"-"`
	Running  bool          `json:"running,omitempty"` // Live is not nil; set by Push
	Budget   time.Duration `json:"budget,omitempty"`  // of the pause; 0: no passes before it
	Tracking *Tracking     `json:"tracking,omitempty"`

	Store  store.Config    `json:"store"`
	Keys   Keys            `json:"keys,omitzero"`
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
	// Next becomes the page table for the push after this one. The VM goes on as soon as
	// Captured is told, and its files change then.
	Next *File `json:"next,omitempty"`
	// Finished is where a push that fails leaves what the store has of it, for the next one.
	Finished *File `json:"finished,omitempty"`

	// Golden is the page table of a golden snapshot. Make has one made, instead of a snapshot
	// of the VM.
	Golden *File                `json:"golden,omitempty"`
	Make   *snapshot.GoldenInfo `json:"make,omitempty"`

	Memory      int64 `json:"memory,omitempty"`      // of buffers; default 256 MiB
	Concurrency int   `json:"concurrency,omitempty"` // default 4

	Kept
}

// Kept is where a job keeps what it sends and reads, and where it may read what the node keeps of golden snapshots.
// Client sets it. Empty: nothing is kept.
type Kept struct {
	Cache  string `json:"cache,omitempty"`
	Shared string `json:"cacheBeside,omitempty"`
}

// OpenJob asks what a snapshot is.
type OpenJob struct {
	Store  store.Config  `json:"store"`
	Keys   Keys          `json:"keys,omitzero"`
	Digest digest.Digest `json:"digest"`
	Want   *snapshot.Ref `json:"want,omitempty"` // nil: any
	Kept
}

// Opened is the answer: the snapshot exists, is whole as far as its manifest, config
// and index go, and is the one that was wanted.
type Opened struct {
	Config *snapshot.Config `json:"config"`
	Stored uint64           `json:"stored"` // bytes to fetch for pages and state
	Pages  uint64           `json:"pages"`  // bytes of pages that are not zero
	RAM    uint64           `json:"ram"`    // those of them that are RAM's
}

// VerifyJob reads a snapshot whole and keeps nothing of it.
type VerifyJob struct {
	Store  store.Config  `json:"store"`
	Keys   Keys          `json:"keys,omitzero"`
	Digest digest.Digest `json:"digest"`

	Memory int64 `json:"memory,omitempty"`
}

// FillJob writes a snapshot into files of the node. Spaces must hold no data; a file
// that is empty gets its size.
type FillJob struct {
	Store  store.Config  `json:"store"`
	Keys   Keys          `json:"keys,omitzero"`
	Digest digest.Digest `json:"digest"`
	Want   *snapshot.Ref `json:"want,omitempty"`

	Spaces []Space `json:"spaces"`
	State  *File   `json:"state,omitempty"`
	// read-only disks that the node lacks, by Digest; written in order: pipes will do
	Disks []Disk `json:"disks,omitempty"`
	// Lazy says that RAM is not among Spaces, and comes later: all packs must be there.
	Lazy  bool  `json:"lazy,omitempty"`
	Table *File `json:"table,omitempty"` // becomes the page table; owner-only

	Memory      int64 `json:"memory,omitempty"`
	Concurrency int   `json:"concurrency,omitempty"`
	Kept
}

// Tracking is how the pages of a running VM that change are found; nil: by their content.
type Tracking struct {
	Way     track.Way      `json:"way"`
	Regions []track.Region `json:"regions"`
	Armed   bool           `json:"armed,omitempty"` // RAM was what the page table says when the kernel began to note
	Pagemap *File          `json:"pagemap,omitempty"`
	Fault   *File          `json:"fault,omitempty"`
	Clear   *File          `json:"clear,omitempty"`
	Vmstat  *File          `json:"vmstat,omitempty"`
}

// Space is the file of an address space.
type Space struct {
	Name string `json:"name"`
	Disk string `json:"disk,omitempty"` // spec.Disk.ID, of a push
	File *File  `json:"file"`
	// Clone, of a push of a disk, is an empty file that no other job has, in the file system of File; nil: the disk is
	// not cloned.
	Clone *File `json:"clone,omitempty"`
	// Notes, of a disk, are the kernel's of what is written to it (bpf.FileNotes); nil: there are none.
	Notes *File `json:"notes,omitempty"`
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
	// Noting, with Captured: the kernel notes what is written to RAM from then on. Next is what RAM was.
	Noting bool `json:"noting,omitempty"`
}

// job is the line on stdin: one of them is set.
type job struct {
	Push *PushJob `json:"push,omitempty"`
	Open *OpenJob `json:"open,omitempty"`
	Fill *FillJob `json:"fill,omitempty"`

	Send    *SendJob    `json:"send,omitempty"`
	Receive *ReceiveJob `json:"receive,omitempty"`

	LazyFill *LazyJob `json:"lazyFill,omitempty"`

	Verify *VerifyJob `json:"verify,omitempty"`
	Diff   *DiffJob   `json:"diff,omitempty"`
	Copy   *CopyJob   `json:"copy,omitempty"`
	Golden *GoldenJob `json:"golden,omitempty"`
}

// reply is a line on stdin after the job: the pause is prepared; the VM is paused; its state is saved; what a
// receiving worker asked for is done.
type reply struct {
	Prepared bool            `json:"prepared,omitempty"`
	Paused   bool            `json:"paused,omitempty"`
	Saved    bool            `json:"saved,omitempty"`
	Error    *remoteError    `json:"error,omitempty"` // of what a receiving worker has asked for
	Resume   json.RawMessage `json:"resume,omitempty"`
	Regions  []track.Region  `json:"regions,omitempty"` // of RAM that waits
}

// line is one on stdout.
type line struct {
	Progress *Progress             `json:"progress,omitempty"`
	Receipt  *snapshot.Receipt     `json:"receipt,omitempty"`
	Opened   *Opened               `json:"opened,omitempty"`
	Filled   *struct{}             `json:"filled,omitempty"`
	Verdict  *snapshot.Verdict     `json:"verdict,omitempty"`
	Copied   *snapshot.Copied      `json:"copied,omitempty"`
	Diff     *[]snapshot.SpaceDiff `json:"diff,omitempty"`
	Golden   *snapshot.GoldenInfo  `json:"golden,omitempty"`
	Error    *remoteError          `json:"error,omitempty"`
	// Prepare and Pause order what Live does; the caller answers with one reply, and with two.
	Prepare bool `json:"prepare,omitempty"`
	Pause   bool `json:"pause,omitempty"`
	// Kept says that much was kept: the cache may be above its limit. Cache is what it was good for, in addition to an
	// answer.
	Kept  bool         `json:"kept,omitempty"`
	Cache *cache.Usage `json:"cacheUsage,omitempty"`
	// Complete and Arrived order what Arrival does; the caller answers each with a reply.
	Complete bool     `json:"complete,omitempty"`
	Launched bool     `json:"launched,omitempty"`
	Arrived  *arrived `json:"arrived,omitempty"`
	// RAM and Whole order what those of LazyJob do, in the same way.
	RAM   bool `json:"ram,omitempty"`
	Whole bool `json:"whole,omitempty"`

	Ended    string         `json:"ended,omitempty"` // digest of all that was sent; READY was not said
	Sent     *snapshot.Sent `json:"sent,omitempty"`
	Received *struct{}      `json:"received,omitempty"`
}
