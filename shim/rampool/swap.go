package rampool

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// CanForbidSwap tells whether this kernel makes, for this process, a tmpfs whose pages are never
// swapped out. None is mounted.
func CanForbidSwap() bool {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fs)
	return unix.FsconfigSetFlag(fs, "noswap") == nil && unix.FsconfigCreate(fs) == nil
}

// Swaps tells whether what lies in dir may be swapped out. It reads how the kernel lists the
// file system that is mounted there, on the host or not. Pages of a hugetlbfs are never swapped
// out. NotFound where nothing is mounted.
func Swaps(dir string) (bool, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, fmt.Errorf("look for the mount of %s: %w", dir, err)
	}
	return swaps(string(table), filepath.Clean(dir))
}

// swaps reads a table as proc(5) has it: of several mounts on one place the last one counts.
func swaps(table, dir string) (swaps bool, err error) {
	err = fmt.Errorf("nothing is mounted on %s: %w", dir, errdefs.ErrNotFound)
	for line := range strings.Lines(table) {
		mount, fs, ok := strings.Cut(line, " - ")
		place, kind := strings.Fields(mount), strings.Fields(fs)
		if !ok || len(place) < 5 || len(kind) < 3 || unescape.Replace(place[4]) != dir {
			continue
		}
		options := strings.Split(kind[2], ",")
		swaps, err = kind[0] != "hugetlbfs" && !slices.Contains(options, "noswap"), nil
	}
	return swaps, err
}

// unescape undoes what the kernel writes for characters that would break its table.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
