package shim

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/bpf"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/snapshot/worker"
	"godwit.dev/godwit/vmm"
)

// What the VMM writes to a disk of some size is noted, if a pass comes before the pause. The notes are settled by who
// may write then: a file that the VMM has opened past the cache, or another process for writing, has none.
func TestNotesOfDisks(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	dir := t.TempDir()
	var at unix.Statfs_t
	w.must("ask for the file system", unix.Statfs(dir, &at))
	if os.Geteuid() != 0 || at.Type != unix.EXT4_SUPER_MAGIC || bpf.NotesFiles() != nil {
		t.Skip("needs root, Linux 6.14, and a directory for temporary files on ext4")
	}
	w.must("be the VMM", vm.write(func(j *journal.Journal) { j.Process = &vmm.Process{PID: os.Getpid()} }))
	open := func(name string, size int, flag int) (*os.File, worker.Space) {
		t.Helper()
		path := filepath.Join(dir, name)
		w.must("write disk", os.WriteFile(path, make([]byte, size), 0o600))
		own, err := os.OpenFile(path, os.O_RDWR|flag, 0)
		w.must("open disk", err)
		t.Cleanup(func() { own.Close() })
		f, err := os.Open(path)
		w.must("open disk", err)
		t.Cleanup(func() { f.Close() })
		return own, worker.Space{Disk: name, File: worker.Open(f)}
	}
	own, large := open("large", notesWorth, 0)
	_, small := open("small", 4096, 0)
	_, direct := open("direct", notesWorth, unix.O_DIRECT)
	note := func(s *livePause, budget time.Duration) ([]worker.Space, *openFiles) {
		files := &openFiles{}
		spaces := []worker.Space{{File: large.File}, large, small, direct}
		s.noteDisks(t.Context(), spaces, budget, files)
		return spaces, files
	}
	for _, s := range []*livePause{{vm: vm, paused: true}, {vm: vm}} {
		budget := time.Second
		if !s.paused {
			budget = 0
		}
		spaces, _ := note(s, budget)
		if spaces[1].Notes != nil {
			t.Errorf("paused: %v: notes without a pass before the pause", s.paused)
		}
	}
	for what, other := range map[string]bool{"settled": false, "another writer": true} {
		s := &livePause{vm: vm}
		spaces, files := note(s, time.Second)
		if spaces[0].Notes != nil || spaces[1].Notes == nil || spaces[2].Notes != nil || spaces[3].Notes != nil {
			t.Fatalf("notes of %+v", spaces)
		}
		noted, err := bpf.OpenNoted(spaces[1].Notes.File, notesWorth)
		w.must("open notes", err)
		if _, err := own.WriteAt([]byte("data"), 8192); err != nil || noted.Settled() {
			t.Errorf("%s: %v; settled before the pause: %v", what, err, noted.Settled())
		}
		if other {
			w.must("write", os.WriteFile(own.Name()+"2", nil, 0o600))
			f, err := os.OpenFile(own.Name(), os.O_RDWR, 0)
			w.must("open disk", err)
			w.must("close disk", f.Close())
		}
		s.notes.settle()
		var from []int64
		noted.Take(func(offset, _ int64) { from = append(from, offset) })
		if noted.Settled() == other || len(from) != 1 || from[0] != 8192 {
			t.Errorf("%s: settled %v, written at %v", what, noted.Settled(), from)
		}
		files.close()
		if noted.Settled() {
			t.Errorf("%s: the notes go on after the operation", what)
		}
		noted.Close()
	}
}
