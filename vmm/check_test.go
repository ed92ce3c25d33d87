package vmm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

// A file that was cut short is no disk: a guest that is shown one reads nothing where its file system goes on.
func TestCheckHotShortFile(t *testing.T) {
	slots := Slots{FirstDisk: 1, LastDisk: 2, FirstHot: 3, LastHot: 4}
	for size, short := range map[int64]bool{0: true, 1: true, 511: true, 4095: true, 512: false, 1 << 20: false} {
		f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		if err := (Disk{ID: "a", Slot: 3, File: f}).CheckHot(slots); errdefs.IsInvalidArgument(err) != short {
			t.Errorf("a file of %d bytes: %v", size, err)
		}
	}
}
