package worker

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/bpf"
	"godwit.dev/godwit/snapshot/store"
)

// writing is a VM that writes to its disk right before its pause.
type writing struct {
	stands
	write, settle func() error
}

func (w writing) Pause(context.Context) error { return w.write() }

func (w writing) Save(context.Context) (json.RawMessage, error) { return nil, w.settle() }

// A worker without rights reads the notes of a disk, for a snapshot: its pause reads what was written since the first
// pass, and the snapshot has that. A worker that is given something else reads all of the disk.
func TestNotesReachTheWorker(t *testing.T) {
	for _, broken := range []bool{false, true} {
		dir := t.TempDir()
		var at unix.Statfs_t
		if err := unix.Statfs(dir, &at); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() != 0 || at.Type != unix.EXT4_SUPER_MAGIC || bpf.NotesFiles() != nil {
			t.Skip("needs root, Linux 6.14, and a directory for temporary files on ext4")
		}
		j := pushJob(t, store.Config{Repository: store.LayoutPrefix + filepath.Join(t.TempDir(), "uid1")})
		const size = 4 << 20
		disk := file(t, noise(size))
		defer disk.Close()
		n, err := bpf.NoteFile(t.Context(), disk.File, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		space := Space{Name: "disk0", Disk: "rw", File: disk, Notes: Open(n.Map)}
		if broken {
			null, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			defer null.Close()
			space.Notes = Open(null)
		}
		j.Spaces = append(j.Spaces, space)
		j.Spec.Disks = []spec.Disk{{ID: "rw", Size: size}}
		j.Budget = time.Hour
		j.Live = writing{write: func() error { _, err := disk.WriteAt([]byte("written"), 5000); return err },
			settle: func() error { return n.Settle(1) }}
		r, err := client().Push(t.Context(), j, nil)
		if err != nil || len(r.Disks) != 1 {
			t.Fatal(r.Disks, err)
		}
		if read := r.Disks[0].Read; r.Disks[0].Noted == broken || broken != (read == size) || !broken && read != 4096 {
			t.Errorf("broken: %v; the pause has read %+v", broken, r.Disks)
		}
	}
}
