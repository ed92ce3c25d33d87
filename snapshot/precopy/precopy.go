// Package precopy reads the pages of a VM that runs: in passes while it runs, each over what was
// written since the pass before, and a last one in its pause. A push stores what it reads, a live
// move sends it; what comes of a page is theirs (Copy, Worker).
//
//	Prepare   passes while the VM runs   Pause, Save, the last pass   clones of disks
//
// Package precopy decides how many passes there are, which pages each one reads, and when the VM
// is paused. It never starts a VM or lets one go on.
package precopy

import (
	"context"
	"encoding/json"
	"os"
	"time"
)

// Space is the file of an address space: RAM, or a writable disk.
type Space struct {
	Name string // ram0, disk0...
	Disk string // spec.Disk.ID; empty for RAM
	File *os.File
	// Clone, of a disk, is an empty file on the same file system that nothing else uses: the pause
	// clones the disk into it, and the pages are read from there, where the file system can. Nil:
	// none is made.
	Clone *os.File
	// Notes, of a disk, say what is written to it from before the first pass on; nil: nothing does.
	Notes WriteNotes
}

// Live is a VM that runs.
type Live interface {
	// Prepare does what the pause needs and the guest has to run for, such as asking it. What
	// is written meanwhile is read before Pause.
	Prepare(ctx context.Context) error
	// Pause returns when the VM stands still.
	Pause(ctx context.Context) error
	// Save returns when the device state of the paused VM is stored, with what of it goes into
	// the config of a snapshot.
	Save(ctx context.Context) (resume json.RawMessage, err error)
}

// Tracker tells which pages of RAM were written: package track has them.
type Tracker interface {
	// Next ends an interval, calls written for what was written in it, and answers whether
	// that is all. Last is set where the VM stands still.
	Next(last bool, written func(offset, end int64)) (known bool, err error)
	// Between reports whether Next knows before the last one.
	Between() bool
}

// Copy is who takes the pages. Its methods are called by one goroutine, none during a pass but Gone.
type Copy interface {
	// Begin is called before each pass.
	Begin(Scope) error
	// End is called after each pass that the VM ran through. It is called once with Scope.Last:
	// after the last page has been read that the VM has to stand still for.
	End(Scope) error
	// Gone hears of pages that had data and are holes now.
	Gone(a *Area, block int, pages *Mask) error
}

// Worker reads blocks in one goroutine. What it holds at the end of a pass End hands on.
type Worker interface {
	Begin(last bool)
	Block(Item) error
	End() (Count, error)
}

// Count is what came of a pass.
type Count struct {
	Looked, Changed, Left uint64 // pages
	Inside                uint64 // bytes that were sent in the pause, for want of memory
}

func (c *Count) add(o Count) {
	c.Looked, c.Changed, c.Left, c.Inside = c.Looked+o.Looked, c.Changed+o.Changed, c.Left+o.Left, c.Inside+o.Inside
}

// Options of New. Copy, and Workers before the first pass, are required.
type Options struct {
	Copy    Copy
	Live    Live    // nil: the VM stands still, one pass reads all
	Tracker Tracker // nil: all pages are compared
	// Budget bounds the pause, as far as passes can: 0 is no pass before it.
	Budget time.Duration
	// Aim is the pause, Budget or less, down to which passes over what was written go on.
	Aim time.Duration
	// Most is how many passes the VM runs through at most.
	Most int
	// Clones has disks cloned in the pause, where their file system can.
	Clones bool
	// Sends says that the pause waits until what is read has been sent.
	Sends bool
}

// Result of Run.
type Result struct {
	Resume    json.RawMessage // of Live.Save
	Passes    []Pass          // the last one is that of the pause
	Untracked string          // why the tracker failed; empty: it did not
	Inside    uint64          // bytes that were sent in the pause, for want of memory
	Disks     []DiskInPause
}

// Pass is one look at a VM, for people.
type Pass struct {
	Looked uint64  `json:"lookedBytes"`
	Sent   uint64  `json:"sentBytes"` // that were new or had changed
	Left   uint64  `json:"leftBytes"` // that keep changing
	MS     float64 `json:"ms"`
}
