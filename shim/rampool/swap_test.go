package rampool

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// What the kernel's table says of a place is read as it is meant: the last mount counts, and a
// place without one is not there.
func TestSwaps(t *testing.T) {
	const table = `20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 0:9 / /run/godwit/ram rw,nosuid - tmpfs godwit-ram rw,size=1k,mode=700
22 20 0:8 / /run/godwit/two rw shared:3 - tmpfs godwit-ram rw,mode=700
23 22 0:7 / /run/godwit/two rw shared:3 - tmpfs godwit-ram rw,mode=700,noswap
24 20 0:6 / /run/with\040space rw - hugetlbfs godwit-ram rw,pagesize=2M
cut off
`
	for _, c := range []struct {
		dir         string
		swaps, none bool
	}{
		{"/run/godwit/ram", true, false},
		{"/run/godwit/two", false, false},
		{"/run/with space", false, false},
		{"/run/godwit", false, true},
	} {
		swaps, err := swaps(table, c.dir)
		if swaps != c.swaps || errdefs.IsNotFound(err) != c.none {
			t.Errorf("%s: %v, %v", c.dir, swaps, err)
		}
	}
}

// The pool that is mounted here is never swapped out where the kernel can do that. A pool that
// was mounted before stays as it is.
func TestPoolIsNotSwapped(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := filepath.Join(t.TempDir(), "ram")
	if err := Mount(dir, 1<<20, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	if swaps, err := Swaps(dir); err != nil || swaps == CanForbidSwap() {
		t.Errorf("swaps: %v, %v; the kernel can forbid it: %v", swaps, err, CanForbidSwap())
	}
	old := filepath.Join(t.TempDir(), "old")
	if err := os.Mkdir(old, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("theirs", old, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(old, unix.MNT_DETACH) })
	if err := Mount(old, 1<<20, 0); err != nil {
		t.Fatal(err)
	}
	if swaps, err := Swaps(old); err != nil || !swaps {
		t.Errorf("one that was there: %v, %v", swaps, err)
	}
}
