package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/bpf"
	"godwit.dev/godwit/snapshot/worker"
)

// notesWorth is how much of a disk there has to be: less is read in a pause sooner than noted.
const notesWorth = 16 << 20

// diskNotes have the kernel note what is written to disks from before the first pass of a worker on. A pause reads only
// what was written since the last pass then. They end with the operation, or with this process.
type diskNotes struct {
	vm  *VM
	all []*bpf.FileNotes
	of  []worker.Space
}

// notesBegin bounds how long notes may take to begin. They write a file next to the disk, which a file system that is
// frozen does not take.
const notesBegin = 5 * time.Second

// noteDisks begins notes where a pass comes before the pause.
func (s *livePause) noteDisks(ctx context.Context, spaces []worker.Space, budget time.Duration, files *openFiles) {
	s.notes.vm = s.vm
	if budget > 0 && !s.paused {
		ctx, cancel := context.WithTimeoutCause(ctx, notesBegin, errNotesLate)
		defer cancel()
		s.notes.note(ctx, spaces, files)
	}
}

// note begins the notes of each disk that has them. Any other one is read whole in the pause, as if there were none.
func (d *diskNotes) note(ctx context.Context, spaces []worker.Space, files *openFiles) {
	for i := range spaces {
		s := &spaces[i]
		var st unix.Stat_t
		if s.Disk == "" || unix.Fstat(int(s.File.Fd()), &st) != nil || st.Blocks*512 < notesWorth {
			continue
		}
		writers, err := d.writers(*s)
		var n *bpf.FileNotes
		if err == nil {
			n, err = bpf.NoteFile(ctx, s.File.File, writers)
		}
		if err != nil {
			d.vm.log.Info("writes to a disk are not noted: all of it is read in the pause", "disk", s.Disk, "reason", err)
			continue
		}
		files.keep(n)
		s.Notes = worker.Open(n.Map)
		d.all, d.of = append(d.all, n), append(d.of, *s)
	}
}

// settle is called when the VM stands still and the VMM writes nothing any more.
func (d *diskNotes) settle() {
	for i, n := range d.all {
		writers, err := d.writers(d.of[i])
		if err == nil {
			err = n.Settle(writers)
		} else {
			err = errors.Join(err, n.Close())
		}
		if err != nil {
			d.vm.log.Warn("notes of a disk's writes are not whole: all of it is read in the pause", "disk", d.of[i].Disk,
				"reason", err)
		}
	}
}

// writers counts the open files by which the VMM writes to a disk. One that goes past the kernel's cache is refused.
func (d *diskNotes) writers(s worker.Space) (int, error) {
	p := d.vm.journal.Load().Process
	if p == nil {
		return 0, errNoProcess
	}
	return bpf.Writers(p.PID, s.File.File)
}

var (
	errNoProcess = errors.New("the VM has no VMM")
	errNotesLate = fmt.Errorf("the file system has not answered in %v", notesBegin)
)
