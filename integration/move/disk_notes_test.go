//go:build integration

package move

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/internal/bpf"
)

// What a VM writes to its disk while its checkpoint is made is noted where the disk is on ext4: the pause reads no more
// of it, and the figures say so. While another process has the disk open for writing, all of it is read.
func TestCheckpointNotesDisk(t *testing.T) {
	h := harness.New(t, harness.Options{Nodes: 1, Registry: harness.PlainHTTP, Godwitd: true, Images: true})
	n := h.Node(0)
	boot(t, n, listen(t, h))
	n.Ctr(t, "task", "exec", "--exec-id", "much", vm, "/bin/busybox", "dd", "if=/dev/urandom", "of=/much", "bs=64k",
		"count=400", "conv=fsync")
	n.Ctr(t, "task", "exec", "--detach", "--exec-id", "little", vm, "/bin/busybox", "sh", "-c",
		"while true; do dd if=/dev/urandom of=/little bs=4k count=8 conv=notrunc,fsync; done 2>/dev/null")
	path, kind := writableDisk(t, h.Dir)
	whole := "were read in the pause, and what was written was copied"
	want := whole
	switch {
	case clones(t):
		want = ""
	case kind == unix.EXT4_SUPER_MAGIC && bpf.NotesFiles() == nil:
		want = "that were written meanwhile were read in the pause"
	}
	check := func(want string) {
		t.Helper()
		r, _ := take(t, n, "checkpoint", vm)
		if notes := strings.Join(r.Figures.Notes, "\n"); !strings.Contains(notes, want) || want == "" && notes != "" {
			t.Errorf("notes %q, want %q", notes, want)
		}
	}
	check(want)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if want != "" {
		want = whole
	}
	check(want)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// writableDisk is the disk that a container of this test writes to, and the kind of its file system.
func writableDisk(t *testing.T, dir string) (path string, kind int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && d.Name() == "godwit-rw.ext4" {
			path = at
		}
		return nil // what has gone meanwhile is not it
	})
	var st unix.Statfs_t
	if err == nil {
		err = unix.Statfs(path, &st)
	}
	if err != nil {
		t.Fatalf("no disk below %s: %v", dir, err)
	}
	return path, st.Type
}
