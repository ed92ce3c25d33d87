package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/shim/rampool"
)

// tableShare of RAM is what page tables of it take at most while each VM is in a checkpoint: 40 bytes
// for a page, in two tables.
const tableShare = 2 // percent

// checkRunDir looks whether the page tables of all VMs that ram_dir has room for find room in run_dir.
// Those that lie there have found it.
func checkRunDir(cfg *config.Config) finding {
	var run, ram unix.Statfs_t
	if err := unix.Statfs(cfg.RunDir, &run); err != nil {
		return finding{Check: "run_dir", Detail: cfg.RunDir + ": " + err.Error(), Remedy: "start godwitd, which makes it"}
	}
	var pool uint64
	if unix.Statfs(cfg.RAMDir, &ram) == nil {
		if memory, _ := rampool.Suits(&ram, 0); memory && ram.Type != unix.HUGETLBFS_MAGIC { // no VM sleeps on huge pages
			pool = ram.Blocks * uint64(ram.Bsize)
		}
	}
	return runDirFinding(cfg.RunDir, &run, tablesIn(cfg.RunDir), pool)
}

// tablesIn is what page tables take in run_dir; what cannot be read is not counted, which asks for more room.
func tablesIn(dir string) (n uint64) {
	vms, _ := os.ReadDir(filepath.Join(dir, "vm"))
	for _, vm := range vms {
		files, _ := os.ReadDir(filepath.Join(dir, "vm", vm.Name()))
		for _, f := range files {
			if !strings.HasPrefix(f.Name(), "table") {
				continue
			}
			if info, err := f.Info(); err == nil {
				n += uint64(info.Size())
			}
		}
	}
	return n
}

func runDirFinding(dir string, st *unix.Statfs_t, tables, pool uint64) finding {
	f := finding{Check: "run_dir"}
	size, room := st.Blocks*uint64(st.Bsize), st.Bavail*uint64(st.Bsize)+tables
	need := pool / 100 * tableShare
	switch {
	case st.Type != unix.TMPFS_MAGIC && st.Type != unix.RAMFS_MAGIC:
		f.Detail = dir + " is not on a tmpfs: page tables there have keys of snapshots in them"
		f.Remedy = "set run_dir to a directory on a tmpfs, such as /run/godwit"
	case st.Type == unix.TMPFS_MAGIC && size > 0 && room < need: // a ramfs has no size, and so has a tmpfs of size 0
		f.Detail = fmt.Sprintf("%s has %s for page tables, and those of %s in ram_dir may take %s, those of writable "+
			"disks 1 or 2 %% of these in addition: "+
			"where there is no room an eager wake is refused, and the push after a checkpoint looks at all pages again", dir,
			screen.Bytes(room), screen.Bytes(pool), screen.Bytes(need))
		f.Remedy = fmt.Sprintf("make that tmpfs larger (mount -o remount,size=%dM, and the same where it is mounted at "+
			"boot), or ram_size smaller", (size+need-room)>>20+1)
	default:
		f.OK, f.Detail = true, fmt.Sprintf("%s, a tmpfs with %s for page tables; those of RAM may take %s", dir,
			screen.Bytes(room), screen.Bytes(need))
	}
	return f
}
