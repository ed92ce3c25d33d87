package shim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/worker"
)

// The worker gets one more file for each writable disk, which no directory has; where none can be made the disk goes
// without. What was read in the pause is told.
func TestClonesOfDisks(t *testing.T) {
	w := newWorld(t).running()
	w.store.inPause = []snapshot.DiskInPause{{Disk: "rw", Read: 3 << 20, Why: "its file system has no reflink"}}
	vm, _ := w.service.current()
	dir := t.TempDir()
	disk, err := os.Create(filepath.Join(dir, "disk"))
	w.must("make disk", err)
	defer disk.Close()
	gone, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	w.must("make disk", err)
	defer gone.Close()
	w.must("remove its directory", os.RemoveAll(filepath.Dir(gone.Name())))
	spaces := []worker.Space{
		{Name: "ram0", File: worker.Open(disk)}, {Name: "disk0", Disk: "rw", File: worker.Open(disk)},
		{Name: "disk1", Disk: "more", File: worker.Open(gone)},
	}
	files := &openFiles{}
	(&pushing{vm: vm, files: files}).openClones(spaces)
	defer files.close()
	var st unix.Stat_t
	if spaces[0].Clone != nil || spaces[1].Clone == nil || spaces[2].Clone != nil {
		t.Fatalf("clones of %+v", spaces)
	}
	if err := unix.Fstat(int(spaces[1].Clone.Fd()), &st); err != nil || st.Nlink != 0 || st.Mode&0o777 != 0o600 {
		t.Errorf("%d links, mode %o, %v", st.Nlink, st.Mode, err)
	}
	r, err := w.checkpoint(false)
	w.must("checkpoint", err)
	if notes := strings.Join(r.GetNotes(), "\n"); notes != "disk rw: 3.0 MiB were read in the pause, and what was "+
		"written was copied: its file system has no reflink" {
		t.Errorf("notes %q", notes)
	}
	for _, s := range w.store.pushed.Spaces {
		if s.Disk != "" && s.Clone == nil {
			t.Errorf("disk %s has no place for a clone", s.Disk)
		}
	}
}
