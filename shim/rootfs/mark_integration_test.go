//go:build integration

package rootfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// A client that compares the snapshot of a VM with its image, to commit it, fails and reads why. The VM's next start
// has no trace of what makes it fail, and neither has a start that failed before anything was written.
func TestSnapshotOfAVMCannotBeCompared(t *testing.T) {
	lower, dst := t.TempDir(), paths(t)
	put(t, lower+"/etc/passwd", "root")
	top := upperOf(t, lower, func(dir string) { put(t, dir+"/copied", "in before the start") })
	view := viewOf(t, top, lower)
	walk := func() error {
		mnt := t.TempDir()
		// As containerd mounts a snapshot to read it.
		must(t, unix.Mount("overlay", mnt, "overlay", unix.MS_RDONLY, "lowerdir="+top+":"+lower))
		defer func() { must(t, unix.Unmount(mnt, 0)) }()
		return filepath.WalkDir(mnt, func(_ string, d os.DirEntry, err error) error {
			if err == nil {
				_, err = d.Info()
			}
			return err
		})
	}
	bad := dst
	bad.WritableSize = -1
	if _, err := Prepare(t.Context(), overlayMount(top, lower), bad); err == nil {
		t.Fatal("a disk of a negative size was made")
	}
	if err := walk(); err != nil {
		t.Errorf("nothing runs, and its snapshot cannot be read: %v", err)
	}
	for range 2 {
		l, err := Prepare(t.Context(), overlayMount(top, lower), dst)
		must(t, err)
		if diff := cmp.Diff(view, overlayOf(t, l.Disks)); diff != "" {
			t.Errorf("the guest's view: %s", diff)
		}
		if err := walk(); err == nil || !strings.Contains(err.Error(), "use godwit cp") {
			t.Errorf("the snapshot of a VM was read: %v", err)
		}
	}
}
